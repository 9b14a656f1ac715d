#include "hopmix/base/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include "hopmix/base/testing.h"

namespace hopmix {
namespace {

namespace fs = std::filesystem;

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("hopmix-files-test-" + std::to_string(getpid()));
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path root_;
};

TEST_F(FilesTest, WritesAndReads) {
  const std::string bytes("a\0b\n", 4);
  write_file(root_ / "x", bytes);
  EXPECT_EQ(read_file(root_ / "x"), bytes);
  write_file(root_ / "x", "");
  EXPECT_EQ(read_file(root_ / "x"), "");
  EXPECT_FALSE(fs::exists(root_ / "x.tmp"));
}

TEST_F(FilesTest, AFullDiskLeavesTheOldFile) {
  write_file(root_ / "x", "old");
  // Simulates a full disk with a limit on file size: write() fails halfway with EFBIG.
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    write_file(root_ / "x", std::string(10000, 'n'));
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(message, "cannot write '" + (root_ / "x").string() + "': File too large");
  EXPECT_EQ(read_file(root_ / "x"), "old");
  EXPECT_FALSE(fs::exists(root_ / "x.tmp"));
}

TEST_F(FilesTest, AWriterThatThrowsLeavesTheOldFile) {
  write_file(root_ / "x", "old");
  EXPECT_THROW(write_file(root_ / "x",
                          [](const Sink& sink) {
                            sink("new", 3);
                            throw Error("no");
                          }),
               Error);
  EXPECT_EQ(read_file(root_ / "x"), "old");
  EXPECT_FALSE(fs::exists(root_ / "x.tmp"));
}

TEST_F(FilesTest, ErrorsNameThePathAndTheReason) {
  EXPECT_EQ(error_of([] { write_file("/nowhere/x", "a"); }),
            "cannot write '/nowhere/x': No such file or directory");
  EXPECT_EQ(error_of([] { read_file("/nowhere/x"); }),
            "cannot read '/nowhere/x': No such file or directory");
  EXPECT_EQ(error_of([&] { read_file(root_); }),
            "cannot read '" + root_.string() + "': Is a directory");
}

}  // namespace
}  // namespace hopmix
