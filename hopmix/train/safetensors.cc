#include "hopmix/train/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"

namespace hopmix::train {
namespace {

static_assert(std::endian::native == std::endian::little, "data is copied as it lies in memory");

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the Python package's limit
constexpr int kMaxDepth = 4;                  // header, tensor, shape, its sizes, and one spare
constexpr const char* kMetadata = "__metadata__";

struct Dtype {
  const char* name;
  at::ScalarType type;
};

// In the order of the data: widest first, so that every tensor is aligned. Within a width the
// order is that of the Python package.
constexpr std::array<Dtype, 10> kDtypes = {{{"I64", at::kLong},
                                            {"F64", at::kDouble},
                                            {"F32", at::kFloat},
                                            {"I32", at::kInt},
                                            {"BF16", at::kBFloat16},
                                            {"F16", at::kHalf},
                                            {"I16", at::kShort},
                                            {"I8", at::kChar},
                                            {"U8", at::kByte},
                                            {"BOOL", at::kBool}}};

std::string known_dtypes() {
  std::string list;
  for (const Dtype& dtype : kDtypes) list += (list.empty() ? "" : ", ") + std::string(dtype.name);
  return list;
}

// A name for an error message: quoted, with control characters escaped and invalid UTF-8 replaced.
std::string quoted(const std::string& name) {
  return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// ---- writing

const Dtype* dtype_of(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const std::string& what, const std::string& right) {
    return Error("tensor " + quoted(name) + " is " + what + ": must be " + right);
  };
  if (!tensor.defined()) throw refuse("undefined", "a tensor");
  if (tensor.layout() != at::kStrided) throw refuse("not strided", "dense");
  if (tensor.is_meta()) throw refuse("on the meta device", "one with data");
  for (const Dtype& dtype : kDtypes) {
    if (dtype.type == tensor.scalar_type()) return &dtype;
  }
  throw refuse("of dtype " + std::string(c10::toString(tensor.scalar_type())),
               "one of " + known_dtypes());
}

std::string header_text(const OrderedJson& header) {
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    throw Error("a name or value of metadata is not UTF-8: must be text");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeader) {
    throw Error("the safetensors header has " + std::to_string(text.size()) +
                " bytes: must be at most " + std::to_string(kMaxHeader));
  }
  return text;
}

// ---- reading

struct Entry {
  std::string name;
  const Dtype* dtype;
  std::vector<int64_t> shape;
  uint64_t begin, end;
};

// Reads one file. Every error names the file.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path) {
    std::error_code reason;
    size_ = std::filesystem::file_size(path, reason);  // fails unless it is a regular file
    if (reason) throw Error("cannot read '" + path.string() + "': " + reason.message());
    in_.open(path, std::ios::binary);
    if (!in_) throw Error("cannot read '" + path.string() + "': " + std::strerror(errno));
  }

  SafetensorsFile read() {
    const Json header = parse_header(read_header());
    SafetensorsFile file;
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.items()) {
      if (name == kMetadata) {
        file.metadata = metadata_of(value);
      } else {
        entries.push_back(entry_of(name, value));
      }
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    check_cover(entries);
    for (const Entry& entry : entries) file.tensors.emplace(entry.name, read_tensor(entry));
    return file;
  }

 private:
  Error bad(const std::string& what) const {
    return Error("'" + path_.string() + "' is not a safetensors file: " + what);
  }
  Error bad(const std::string& name, const std::string& what) const {
    return bad("tensor " + quoted(name) + ": " + what);
  }

  void read_bytes(void* to, uint64_t count) {
    in_.read(static_cast<char*>(to), static_cast<std::streamsize>(count));
    if (!in_) throw Error("cannot read '" + path_.string() + "': unexpected end of file");
  }

  std::string read_header() {
    if (size_ < kLengthBytes) throw bad("it has " + std::to_string(size_) + " bytes, but needs 8");
    uint64_t length = 0;
    read_bytes(&length, kLengthBytes);
    if (length > kMaxHeader) {
      throw bad("the header has " + std::to_string(length) + " bytes, but at most " +
                std::to_string(kMaxHeader) + " are allowed");
    }
    if (length > size_ - kLengthBytes) {
      throw bad("the header has " + std::to_string(length) + " bytes in a file of " +
                std::to_string(size_));
    }
    std::string text(length, '\0');
    read_bytes(text.data(), length);
    data_size_ = size_ - kLengthBytes - length;
    return text;
  }

  Json parse_header(const std::string& text) const {
    if (text.empty() || text[0] != '{') throw bad("the header does not start with '{'");
    if (text.find('\0') != std::string::npos) throw bad("the header contains a zero byte");

    // The JSON parser would silently drop one of two equal names, and it accepts any depth although
    // later code recurses over the result.
    std::vector<std::set<std::string>> open;
    const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (depth > kMaxDepth) throw bad("the header is nested too deeply");
      if (event == Json::parse_event_t::object_start) open.emplace_back();
      if (event == Json::parse_event_t::object_end) open.pop_back();
      if (event == Json::parse_event_t::key) {
        const std::string& key = parsed.get_ref<const std::string&>();
        if (!open.back().insert(key).second) throw bad(quoted(key) + " appears twice");
      }
      return true;
    };
    try {
      return Json::parse(text, check);
    } catch (const Json::exception& error) {
      throw bad(std::string("the header is not JSON: ") + error.what());
    }
  }

  std::map<std::string, std::string> metadata_of(const Json& value) const {
    const auto is_text = [](const Json& item) { return item.is_string(); };
    if (!value.is_object() || !std::all_of(value.begin(), value.end(), is_text)) {
      throw bad(std::string(kMetadata) + " is not a map of strings");
    }
    std::map<std::string, std::string> metadata;
    for (const auto& [key, text] : value.items()) metadata[key] = text.get<std::string>();
    return metadata;
  }

  Entry entry_of(const std::string& name, const Json& value) const {
    if (!value.is_object()) throw bad(name, "not an object");
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!value.contains(key)) throw bad(name, "no " + std::string(key));
    }
    Entry entry;
    entry.name = name;
    entry.dtype = dtype_named(name, value["dtype"]);
    for (const uint64_t size : counts_of(name, "shape", value["shape"])) {
      entry.shape.push_back(static_cast<int64_t>(size));
    }
    const std::vector<uint64_t> offsets = counts_of(name, "data_offsets", value["data_offsets"]);
    if (offsets.size() != 2) throw bad(name, "data_offsets must be two numbers");
    entry.begin = offsets[0];
    entry.end = offsets[1];
    if (entry.begin > entry.end || entry.end > data_size_) {
      throw bad(name, "data_offsets " + value["data_offsets"].dump() + " in data of " +
                          std::to_string(data_size_) + " bytes");
    }
    check_size(entry);
    return entry;
  }

  const Dtype* dtype_named(const std::string& name, const Json& value) const {
    for (const Dtype& dtype : kDtypes) {
      if (value == dtype.name) return &dtype;
    }
    throw bad(name, "dtype " + value.dump() + " is not one of " + known_dtypes());
  }

  // An array of integers from 0 to 2^63 - 1.
  std::vector<uint64_t> counts_of(const std::string& name, const std::string& key,
                                  const Json& value) const {
    if (!value.is_array()) throw bad(name, key + " is not an array");
    std::vector<uint64_t> counts;
    for (const Json& item : value) {
      if (!item.is_number_unsigned() || item.get<uint64_t>() > INT64_MAX) {
        throw bad(name, key + " holds " + item.dump() + ", not an integer from 0 to 2^63 - 1");
      }
      counts.push_back(item.get<uint64_t>());
    }
    return counts;
  }

  void check_size(const Entry& entry) const {
    // Sizes of 0 count as 1 in the overflow check, because strides are products of sizes too.
    int64_t strides = static_cast<int64_t>(c10::elementSize(entry.dtype->type));
    bool empty = false;
    for (const int64_t size : entry.shape) {
      empty = empty || size == 0;
      if (__builtin_mul_overflow(strides, std::max<int64_t>(size, 1), &strides)) {
        throw bad(entry.name, "its shape has more than 2^63 bytes");
      }
    }
    const uint64_t needed = empty ? 0 : static_cast<uint64_t>(strides);
    if (entry.end - entry.begin != needed) {
      throw bad(entry.name, std::to_string(entry.end - entry.begin) +
                                " bytes of data, but its shape and dtype need " +
                                std::to_string(needed));
    }
  }

  // The tensors must cover each byte of the data exactly once. `entries` are in data order.
  void check_cover(const std::vector<Entry>& entries) const {
    uint64_t covered = 0;
    for (const Entry& entry : entries) {
      if (entry.begin < covered) throw bad(entry.name, "its data overlaps another tensor's");
      if (entry.begin > covered) throw bad(entry.name, "there is a gap before its data");
      covered = entry.end;
    }
    if (covered != data_size_) {
      throw bad("the data has " + std::to_string(data_size_) + " bytes, but the tensors cover " +
                std::to_string(covered));
    }
  }

  at::Tensor read_tensor(const Entry& entry) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype->type));
    const uint64_t count = entry.end - entry.begin;
    if (count == 0) return tensor;
    read_bytes(tensor.mutable_data_ptr(), count);  // in the order of the data, so without seeking
    if (entry.dtype->type == at::kBool) {
      const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
      if (std::any_of(bytes, bytes + count, [](uint8_t byte) { return byte > 1; })) {
        throw bad(entry.name, "it has a BOOL that is neither 0 nor 1");
      }
    }
    return tensor;
  }

  std::filesystem::path path_;
  std::ifstream in_;
  uint64_t size_ = 0, data_size_ = 0;
};

}  // namespace

void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  struct Item {
    const Dtype* dtype;
    std::string name;
    at::Tensor tensor;
  };
  std::vector<Item> items;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadata) throw Error("tensor \"__metadata__\": must have another name");
    items.push_back({dtype_of(name, tensor), name, tensor.detach()});
  }
  // Dtypes compare by their place in the table; names are in order already.
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.dtype < b.dtype; });

  OrderedJson::object_t header;  // push_back avoids the linear search of operator[]
  if (!metadata.empty()) header.push_back({kMetadata, metadata});
  uint64_t offset = 0;
  for (const Item& item : items) {
    const uint64_t end = offset + item.tensor.nbytes();
    header.push_back({item.name,
                      {{"dtype", item.dtype->name},
                       {"shape", item.tensor.sizes().vec()},
                       {"data_offsets", {offset, end}}}});
    offset = end;
  }
  const std::string text = header_text(std::move(header));
  const uint64_t length = text.size();

  write_file(path, [&](const Sink& sink) {
    sink(&length, kLengthBytes);
    sink(text.data(), text.size());
    for (const Item& item : items) {
      // One tensor at a time, because strides, another device or a lazy negation require a copy.
      const at::Tensor plain = item.tensor.cpu().resolve_neg().contiguous();
      sink(plain.const_data_ptr(), plain.nbytes());
    }
  });
}

SafetensorsFile read_safetensors(const std::filesystem::path& path) { return Reader(path).read(); }

}  // namespace hopmix::train
