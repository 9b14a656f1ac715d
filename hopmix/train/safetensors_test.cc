#include "hopmix/train/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <unistd.h>
#include <csignal>
#include "hopmix/base/testing.h"
#include "hopmix/nn/torch.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <random>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"

namespace hopmix::train {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, at::Tensor>;

// A folder of its own for each test.
class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("hopmix_" + std::string(info->name()) + "_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path path(const std::string& name = "x.safetensors") const { return folder_ / name; }

  // The message, without the file name, of the Error that reading `bytes` throws; "" if they load.
  std::string read_error(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary)
        << bytes;  // no fsync, as write_file has: thousands are read
    try {
      read_safetensors(path());
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      const std::string prefix = "'" + path().string() + "' is not a safetensors file: ";
      EXPECT_EQ(message.substr(0, prefix.size()), prefix);
      return message.substr(std::min(message.size(), prefix.size()));
    }
    return "";
  }

 private:
  fs::path folder_;
};

// Dtype, shape and every byte: NaNs and negative zeros count.
void expect_same(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.scalar_type(), b.scalar_type());
  ASSERT_EQ(a.sizes(), b.sizes());
  const at::Tensor left = a.contiguous(), right = b.contiguous();
  EXPECT_TRUE(left.nbytes() == 0 ||
              std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.count(name)) << name;
    SCOPED_TRACE(name);
    expect_same(tensor, b.at(name));
  }
}

const std::vector<at::ScalarType> kTypes = {at::kDouble, at::kFloat, at::kHalf,  at::kBFloat16,
                                            at::kLong,   at::kInt,   at::kShort, at::kChar,
                                            at::kByte,   at::kBool};

// The given header and data, with the right length prefix.
std::string file_of(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

// {"x": {"dtype": "F32", ...}} over `data_size` bytes.
std::string one_tensor(const std::string& fields, size_t data_size) {
  return file_of("{\"x\":{" + fields + "}}", std::string(data_size, '\1'));
}

// The output of safetensors.torch.save, version 0.8.0, for python_tensors().
std::string python_bytes() {
  const std::string header = R"({"__metadata__":{"step":"12 \"q\" é"},)"
                             R"("a.i64":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
                             R"("a.f64":{"dtype":"F64","shape":[],"data_offsets":[16,24]},)"
                             R"("b.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[24,48]},)"
                             R"("f.empty":{"dtype":"F32","shape":[0,4],"data_offsets":[48,48]},)"
                             R"("d.i32":{"dtype":"I32","shape":[1],"data_offsets":[48,52]},)"
                             R"("c.bf16":{"dtype":"BF16","shape":[3],"data_offsets":[52,58]},)"
                             R"("c.f16":{"dtype":"F16","shape":[2],"data_offsets":[58,62]},)"
                             R"("d.i16":{"dtype":"I16","shape":[2],"data_offsets":[62,66]},)"
                             R"("d.i8":{"dtype":"I8","shape":[3],"data_offsets":[66,69]},)"
                             R"("d.u8":{"dtype":"U8","shape":[2],"data_offsets":[69,71]},)"
                             R"("e.bool":{"dtype":"BOOL","shape":[3],"data_offsets":[71,74]}} )";
  const std::string hex =
      "ffffffffffffffff00000000000100009a9999999999b93f0000c03f000000c00000803e0000404000000000"
      "000000bffbffffff803f40c0003f003cff7bd4fe0700807f01ff00010001";
  std::string data;
  for (size_t i = 0; i < hex.size(); i += 2) {
    data += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return std::string("\xb8\x02\0\0\0\0\0\0", 8) + header + data;
}

Tensors python_tensors() {
  return {
      {"b.weight", torch::tensor({{1.5f, -2.0f, 0.25f}, {3.0f, 0.0f, -0.5f}})},
      {"a.i64", torch::tensor({int64_t{-1}, int64_t{1} << 40})},
      {"a.f64", torch::tensor(0.1, torch::kDouble)},
      {"c.bf16", torch::tensor({1.0, -3.0, 0.5}, torch::kBFloat16)},
      {"c.f16", torch::tensor({1.0, 65504.0}, torch::kHalf)},
      {"d.i32", torch::tensor({-5}, torch::kInt)},
      {"d.i16", torch::tensor({-300, 7}, torch::kShort)},
      {"d.i8", torch::tensor({-128, 127, 1}, torch::kChar)},
      {"d.u8", torch::tensor({255, 0}, torch::kByte)},
      {"e.bool", torch::tensor({1, 0, 1}, torch::kBool)},
      {"f.empty", torch::zeros({0, 4})},
  };
}

const std::map<std::string, std::string> kPythonMetadata = {{"step", "12 \"q\" é"}};

TEST_F(Safetensors, ReadsWhatPythonWrites) {
  write_file(path(), python_bytes());
  const SafetensorsFile file = read_safetensors(path());
  expect_same(file.tensors, python_tensors());
  EXPECT_EQ(file.metadata, kPythonMetadata);
}

TEST_F(Safetensors, WritesTheBytesOfPython) {
  write_safetensors(path(), python_tensors(), kPythonMetadata);
  EXPECT_EQ(read_file(path()), python_bytes());
}

TEST_F(Safetensors, RoundTripsEveryDtypeAndShape) {
  torch::manual_seed(1);
  Tensors tensors;
  const std::vector<std::vector<int64_t>> shapes = {
      {},   {0},    {1},     {2},       {63},         {64},
      {65}, {1000}, {3, 20}, {2, 0, 3}, {2, 3, 4, 5}, {1, 1, 1, 1, 1, 1}};
  for (const at::ScalarType type : kTypes) {
    for (const auto& shape : shapes) {
      std::string name = std::string(c10::toString(type)) + ".";
      for (const int64_t size : shape) name += std::to_string(size) + "x";
      tensors[name] = (torch::randn(shape) * 50).to(type);
    }
  }
  write_safetensors(path(), tensors, {{"a", ""}, {"", "b"}, {"line", "1\n2\t\"\\"}});
  const SafetensorsFile file = read_safetensors(path());
  expect_same(tensors, file.tensors);
  EXPECT_EQ(file.metadata,
            (std::map<std::string, std::string>{{"a", ""}, {"", "b"}, {"line", "1\n2\t\"\\"}}));

  // The layout of the file, by the format's definition.
  const std::string bytes = read_file(path());
  uint64_t header = 0, data = 0;
  std::memcpy(&header, bytes.data(), 8);
  for (const auto& [name, tensor] : tensors) data += tensor.nbytes();
  EXPECT_EQ(header % 8, 0u);
  EXPECT_EQ(bytes.size(), 8 + header + data);
}

TEST_F(Safetensors, KeepsSpecialNumbers) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    const Tensors tensors{{"x", torch::tensor({inf, -inf, std::nan(""), -0.0, 1e-45}, type)}};
    write_safetensors(path(), tensors);
    expect_same(tensors, read_safetensors(path()).tensors);
  }
}

TEST_F(Safetensors, WritesAnyStrides) {
  const at::Tensor base = torch::arange(24 * 5).to(torch::kFloat).view({4, 6, 5});
  Tensors tensors{{"transposed", base.transpose(0, 2)},
                  {"sliced", base.slice(1, 1, 6, 2)},
                  {"expanded", base.select(0, 1).unsqueeze(0).expand({3, 6, 5})},
                  {"offset", base.select(0, 2)},
                  {"negated", at::_neg_view(base)},
                  {"of a graph", base.clone().requires_grad_(true) * 2}};
  write_safetensors(path(), tensors);
  const Tensors read = read_safetensors(path()).tensors;
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(torch::equal(read.at(name), tensor)) << name;
    EXPECT_TRUE(read.at(name).is_contiguous());
    EXPECT_FALSE(read.at(name).requires_grad());
  }
}

TEST_F(Safetensors, TensorsOwnTheirMemory) {
  write_safetensors(path(), {{"a", torch::ones({4})}, {"b", torch::ones({4})}});
  const SafetensorsFile file = read_safetensors(path());
  fs::remove(path());
  file.tensors.at("a").fill_(7);
  EXPECT_TRUE(torch::equal(file.tensors.at("b"), torch::ones({4})));
}

TEST_F(Safetensors, NothingAtAll) {
  write_safetensors(path(), {});
  EXPECT_EQ(read_file(path()), file_of("{}      "));
  const SafetensorsFile file = read_safetensors(path());
  EXPECT_TRUE(file.tensors.empty());
  EXPECT_TRUE(file.metadata.empty());
}

TEST_F(Safetensors, HeaderOrderAndUnknownFieldsDoNotMatter) {
  write_file(path(),
             file_of(R"({"b":{"data_offsets":[4,5],"note":{"x":[1]},"shape":[],"dtype":"U8"},)"
                     R"("a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})"
                     "\n\t ",
                     std::string("\5\0\0\0\7", 5)));
  const Tensors read = read_safetensors(path()).tensors;
  expect_same(read,
              {{"a", torch::tensor({5}, torch::kInt)}, {"b", torch::tensor(7, torch::kByte)}});
}

TEST_F(Safetensors, MalformedHeaders) {
  const std::string good = python_bytes();
  const std::vector<std::pair<std::string, std::string>> table = {
      {"", "it has 0 bytes, but needs 8"},
      {good.substr(0, 7), "it has 7 bytes, but needs 8"},
      {good.substr(0, 8), "the header has 696 bytes in a file of 8"},
      {good.substr(0, 703), "the header has 696 bytes in a file of 703"},
      {std::string(8, '\xff'),
       "the header has 18446744073709551615 bytes, but at most 100000000 are allowed"},
      {std::string("\x01\xe1\xf5\x05\0\0\0\0", 8),
       "the header has 100000001 bytes, but at most 100000000 are allowed"},
      {std::string("\x00\xe1\xf5\x05\0\0\0\0", 8), "the header has 100000000 bytes in a file of 8"},
      {file_of(""), "the header does not start with '{'"},
      {file_of(" {}"), "the header does not start with '{'"},
      {file_of("[]"), "the header does not start with '{'"},
      {file_of(std::string("{}\0", 3)), "the header contains a zero byte"},
      {file_of(R"({"__metadata__":3})"), "__metadata__ is not a map of strings"},
      {file_of(R"({"__metadata__":{"a":3}})"), "__metadata__ is not a map of strings"},
      {file_of(R"({"__metadata__":{"a":"1","a":"2"}})"), "\"a\" appears twice"},
      {file_of(R"({"x":3})"), "tensor \"x\": not an object"},
      {file_of(R"({"x":{},"x":{}})"), "\"x\" appears twice"},
      {file_of(R"({"x":{"dtype":"U8","dtype":"U8"}})"), "\"dtype\" appears twice"},
      {file_of("{\"x\":" + std::string(1000000, '[') + std::string(1000000, ']') + "}"),
       "the header is nested too deeply"},
  };
  for (const auto& [bytes, message] : table) EXPECT_EQ(read_error(bytes), message);

  const std::string not_json = "the header is not JSON: ";
  for (const std::string header : {"{", "{]", "{\"x\":}", "{} {}", "{\"x\":{}", "{\"\xff\":{}}",
                                   "{\"x\n\":{}}", "{'x':1}", "{\"x\":1e999}", "{}\x01"}) {
    EXPECT_EQ(read_error(file_of(header)).substr(0, not_json.size()), not_json) << header;
  }
}

TEST_F(Safetensors, MalformedTensors) {
  const std::string known = " is not one of I64, F64, F32, I32, BF16, F16, I16, I8, U8, BOOL";
  struct Case {
    std::string fields;
    size_t data;
    std::string message;
  };
  const std::vector<Case> table = {
      {R"("shape":[1],"data_offsets":[0,4])", 4, "no dtype"},
      {R"("dtype":"F32","data_offsets":[0,4])", 4, "no shape"},
      {R"("dtype":"F32","shape":[1])", 4, "no data_offsets"},
      {R"("dtype":"F31","shape":[1],"data_offsets":[0,4])", 4, "dtype \"F31\"" + known},
      {R"("dtype":"f32","shape":[1],"data_offsets":[0,4])", 4, "dtype \"f32\"" + known},
      {R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])", 4, "dtype \"F8_E4M3\"" + known},
      {R"("dtype":7,"shape":[1],"data_offsets":[0,4])", 4, "dtype 7" + known},
      {R"("dtype":"F32","shape":1,"data_offsets":[0,4])", 4, "shape is not an array"},
      {R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])", 4,
       "shape holds -1, not an integer from 0 to 2^63 - 1"},
      {R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])", 4,
       "shape holds 1.0, not an integer from 0 to 2^63 - 1"},
      {R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])", 4,
       "shape holds \"1\", not an integer from 0 to 2^63 - 1"},
      {R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])", 4,
       "shape holds 9223372036854775808, not an integer from 0 to 2^63 - 1"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])", 4,
       "data_offsets holds -4, not an integer from 0 to 2^63 - 1"},
      {R"("dtype":"F32","shape":[1],"data_offsets":4)", 4, "data_offsets is not an array"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[4])", 4, "data_offsets must be two numbers"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,2,4])", 4,
       "data_offsets must be two numbers"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[4,0])", 4,
       "data_offsets [4,0] in data of 4 bytes"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,8])", 7,
       "data_offsets [0,8] in data of 7 bytes"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[9223372036854775803,9223372036854775807])", 4,
       "data_offsets [9223372036854775803,9223372036854775807] in data of 4 bytes"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", 4,
       "4 bytes of data, but its shape and dtype need 8"},
      {R"("dtype":"F32","shape":[0],"data_offsets":[0,4])", 4,
       "4 bytes of data, but its shape and dtype need 0"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,0])", 0,
       "0 bytes of data, but its shape and dtype need 4"},
      // 2^62 * 4 wraps to 0 in 64 bits; an empty tensor has strides all the same.
      {R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])", 0,
       "its shape has more than 2^63 bytes"},
      {R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0,
       "its shape has more than 2^63 bytes"},
      {R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])", 0,
       "its shape has more than 2^63 bytes"},
      // A petabyte that is not there.
      {R"("dtype":"F64","shape":[1000000,1000000,1000],"data_offsets":[0,8])", 8,
       "8 bytes of data, but its shape and dtype need 8000000000000000"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[4,8])", 8, "there is a gap before its data"},
  };
  for (const Case& c : table) {
    EXPECT_EQ(read_error(one_tensor(c.fields, c.data)), "tensor \"x\": " + c.message) << c.fields;
  }

  EXPECT_EQ(read_error(one_tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])", 4)), "");
  EXPECT_EQ(read_error(one_tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])", 5)),
            "the data has 5 bytes, but the tensors cover 4");
  EXPECT_EQ(read_error(file_of("{}", "x")), "the data has 1 bytes, but the tensors cover 0");
  EXPECT_EQ(read_error(file_of(R"({"b":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})",
                               std::string("\1\2", 2))),
            "tensor \"b\": it has a BOOL that is neither 0 nor 1");
  // Names with control characters stay on one line.
  EXPECT_EQ(read_error(file_of(R"({"a\nb":3})")), "tensor \"a\\nb\": not an object");
}

TEST_F(Safetensors, OverlapsAndHolesBetweenTensors) {
  const auto two = [](const std::string& a, const std::string& b) {
    return file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                       R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                   std::string(9, '\0'));
  };
  EXPECT_EQ(read_error(two("[0,4]", "[4,8]")), "the data has 9 bytes, but the tensors cover 8");
  EXPECT_EQ(read_error(two("[0,4]", "[3,7]")), "tensor \"b\": its data overlaps another tensor's");
  EXPECT_EQ(read_error(two("[5,9]", "[5,9]")), "tensor \"a\": there is a gap before its data");
  EXPECT_EQ(read_error(two("[0,4]", "[0,4]")), "tensor \"b\": its data overlaps another tensor's");
  EXPECT_EQ(read_error(two("[5,9]", "[0,4]")), "tensor \"a\": there is a gap before its data");
}

TEST_F(Safetensors, EveryTruncationIsAnError) {
  const std::string good = python_bytes();
  ASSERT_EQ(read_error(good), "");
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_NE(read_error(good.substr(0, size)), "") << size;
  }
  EXPECT_NE(read_error(good + '\0'), "");
}

// Whatever a byte turns into, either the file loads or an Error says why; read_error lets any other
// exception through.
TEST_F(Safetensors, FlippedBytesNeverCrash) {
  const std::string good = python_bytes();
  std::mt19937 random(3);
  int loaded = 0, refused = 0;
  const auto count = [&](const std::string& bytes) {
    ++(read_error(bytes).empty() ? loaded : refused);
  };
  const size_t header_end = 8 + 696;
  for (size_t at = 0; at < header_end; ++at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(random() % 256);
    count(bytes);
  }
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = good;
    const size_t flips = 1 + random() % 8;
    for (size_t flip = 0; flip < flips; ++flip) {
      // Bytes that are likely in a header, as well as any byte.
      const std::string likely = "0123456789{}[]\",:-.eE \\u";
      const size_t at = random() % header_end;
      bytes[at] =
          random() % 2 ? likely[random() % likely.size()] : static_cast<char>(random() % 256);
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    count(bytes);
  }
  EXPECT_GT(loaded, 20);  // a changed name is still a name
  EXPECT_GT(refused, 1000);
}

TEST_F(Safetensors, RefusesWhatItCannotWrite) {
  const auto error = [&](const std::string& name, const at::Tensor& tensor) {
    return error_of([&] { write_safetensors(path(), {{name, tensor}}); });
  };
  EXPECT_EQ(error("x", at::Tensor()), "tensor \"x\" is undefined: must be a tensor");
  EXPECT_EQ(error("x", torch::ones({2, 2}).to_sparse()),
            "tensor \"x\" is not strided: must be dense");
  EXPECT_EQ(error("x", torch::ones({2}, torch::kMeta)),
            "tensor \"x\" is on the meta device: must be one with data");
  EXPECT_EQ(error("x\n", torch::ones({2}, torch::kComplexFloat)),
            "tensor \"x\\n\" is of dtype ComplexFloat: must be one of I64, F64, F32, I32, BF16, "
            "F16, I16, "
            "I8, U8, BOOL");
  EXPECT_EQ(error("__metadata__", torch::ones({2})),
            "tensor \"__metadata__\": must have another name");
  EXPECT_EQ(error("\xff", torch::ones({2})),
            "a name or value of metadata is not UTF-8: must be text");
  EXPECT_EQ(error_of([&] {
              write_safetensors(path(), {}, {{"k", "\xff"}});
            }),
            "a name or value of metadata is not UTF-8: must be text");
  EXPECT_FALSE(fs::exists(path()));
}

TEST_F(Safetensors, OldFileStaysWhenWritingFails) {
  write_safetensors(path(), python_tensors(), kPythonMetadata);
  const std::string old = read_file(path());

  EXPECT_NE(error_of([&] {
              write_safetensors(path(), {{"a", torch::ones({2})}, {"b", at::Tensor()}});
            }),
            "");
  EXPECT_EQ(read_file(path()), old);

  // A disk that is full after 1,000 bytes, simulated by a limit of the process.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1000, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string full = error_of([&] {
    write_safetensors(path(), {{"a", torch::ones({1000})}});
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(full, "cannot write '" + path().string() + "': File too large");
  EXPECT_EQ(read_file(path()), old);
  EXPECT_FALSE(fs::exists(path().string() + ".tmp"));

  // A link in place of the temporary file is not followed.
  fs::create_symlink("/dev/full", path().string() + ".tmp");
  write_safetensors(path(), python_tensors(), kPythonMetadata);
  EXPECT_EQ(read_file(path()), old);
  EXPECT_FALSE(fs::is_symlink(path().string() + ".tmp"));

  // A path where no file can be created.
  fs::create_directory(path().string() + ".tmp");
  EXPECT_EQ(error_of([&] {
              write_safetensors(path(), {{"a", torch::ones({2})}});
            }),
            "cannot write '" + path().string() + "': Is a directory");
  EXPECT_EQ(read_file(path()), old);
  EXPECT_EQ(error_of([&] {
              write_safetensors(path("none/x"), {{"a", torch::ones({2})}});
            }),
            "cannot write '" + path("none/x").string() + "': No such file or directory");
}

TEST_F(Safetensors, ReadingWhatIsNotAFile) {
  EXPECT_EQ(error_of([&] { read_safetensors(path("none")); }),
            "cannot read '" + path("none").string() + "': No such file or directory");
  EXPECT_EQ(error_of([&] { read_safetensors(path("")); }),
            "cannot read '" + path("").string() + "': Is a directory");
  EXPECT_NE(error_of([&] { read_safetensors("/dev/zero"); }), "");
}

}  // namespace
}  // namespace hopmix::train
