#include "hopmix/base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>

#include "hopmix/base/files.h"
#include "hopmix/base/testing.h"

namespace hopmix {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("hopmix-mapped-test-" + std::to_string(getpid()));
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path root_;
};

TEST_F(MappedFileTest, IsTheFile) {
  std::string bytes(100001, 'x');
  bytes[0] = '\0';
  bytes[100000] = '\xff';
  write_file(root_ / "x", bytes);
  EXPECT_EQ(MappedFile(root_ / "x").bytes(), bytes);
  write_file(root_ / "empty", "");
  EXPECT_EQ(MappedFile(root_ / "empty").bytes(), "");
}

TEST_F(MappedFileTest, CopiesOutliveTheirOriginalAndTheName) {
  write_file(root_ / "x", "still here");
  std::optional<MappedFile> first(root_ / "x");
  const MappedFile copy = *first;
  first.reset();
  fs::remove(root_ / "x");
  EXPECT_EQ(copy.bytes(), "still here");
}

TEST_F(MappedFileTest, ErrorsNameThePath) {
  const auto error = [&](const fs::path& path) { return error_of([&] { MappedFile{path}; }); };
  EXPECT_EQ(error(root_ / "none"),
            "cannot read '" + (root_ / "none").string() + "': No such file or directory");
  EXPECT_EQ(error(root_), "cannot read '" + root_.string() + "': Is a directory");
  EXPECT_EQ(error("/dev/null"), "cannot read '/dev/null': No such device");
}

}  // namespace
}  // namespace hopmix
