#include <malloc.h>

#include "hopmix/cli/commands.h"

int main(int argc, char** argv) {
  // A step of training frees what the next one takes: keep the pages, which cost more to get anew
  // than to fill. 32 MiB is the most that glibc takes for the first.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  return hopmix::cli::run(argc, argv);
}
