#include "hopmix/bench/machine.h"

#include <ATen/Version.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>

#include "hopmix/kernels/base/load_bandwidth.h"

namespace hopmix::bench {
namespace {

// The value of "KEY<spaces>: VALUE" in a file of such lines; "" if absent.
std::string find_value(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (line.rfind(key, 0) != 0 || colon == std::string::npos) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

int64_t known_size(int name) {
  const long size = sysconf(name);
  return size > 0 ? size : 0;
}

int64_t page_count(int name) { return known_size(name) * known_size(_SC_PAGESIZE); }

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string cpu_name() {
  const std::string name = find_value("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown" : name;
}

}  // namespace

Caches find_caches() {
  Caches caches;
  caches.l1 = known_size(_SC_LEVEL1_DCACHE_SIZE);
  caches.l2 = known_size(_SC_LEVEL2_CACHE_SIZE);
  caches.l3 = known_size(_SC_LEVEL3_CACHE_SIZE);
  return caches;
}

int64_t free_memory() {
  // "MemAvailable: 123 kB"
  const std::string available = find_value("/proc/meminfo", "MemAvailable");
  if (!available.empty()) return std::strtoll(available.c_str(), nullptr, 10) * 1024;
  return page_count(_SC_AVPHYS_PAGES);
}

nlohmann::ordered_json describe_machine() {
  const Caches caches = find_caches();
  double load = 0;
  getloadavg(&load, 1);
  return {{"cpu", cpu_name()},
          {"logical_cpus", std::thread::hardware_concurrency()},
          {"l1_bytes", caches.l1},
          {"l2_bytes", caches.l2},
          {"l3_bytes", caches.l3},
          {"memory_bytes", page_count(_SC_PHYS_PAGES)},
          {"simd", kernels::simd_target()},
          {"torch_simd", at::get_cpu_capability()},
          {"hopmix", HOPMIX_VERSION},
          {"torch", TORCH_VERSION},
          {"compiler", __VERSION__},
          {"date", now_utc()},
          {"load", load}};
}

}  // namespace hopmix::bench
