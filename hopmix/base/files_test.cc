#include "hopmix/base/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <thread>

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

TEST_F(FilesTest, FollowsLinksAndKeepsPermissions) {
  write_file(root_ / "x", "old");
  fs::permissions(root_ / "x", fs::perms(0600));
  fs::create_directories(root_ / "links");
  fs::create_symlink("../x", root_ / "links" / "near");
  fs::create_symlink(root_ / "links" / "near", root_ / "far");
  fs::create_symlink("made", root_ / "dangling");
  write_file(root_ / "far", "new");
  write_file(root_ / "dangling", "new");
  for (const char* link : {"links/near", "far", "dangling"}) {
    EXPECT_TRUE(fs::is_symlink(root_ / link)) << link;
  }
  EXPECT_EQ(read_file(root_ / "x"), "new");
  EXPECT_EQ(read_file(root_ / "made"), "new");
  EXPECT_EQ(fs::status(root_ / "x").permissions(), fs::perms(0600));
}

TEST_F(FilesTest, WritesThroughWhatIsNotARegularFile) {
  const fs::path pipe = root_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = read_file(pipe); });
  write_file(pipe, std::string(200000, 'x'));
  reader.join();
  EXPECT_EQ(read, std::string(200000, 'x'));
  EXPECT_TRUE(fs::is_fifo(pipe));
  if (!fs::is_character_file("/dev/full")) GTEST_SKIP() << "needs a device that is always full";
  fs::create_symlink("/dev/full", root_ / "full");
  EXPECT_EQ(error_of([&] { write_file(root_ / "full", "x"); }),
            "cannot write '" + (root_ / "full").string() + "': No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  write_file("/dev/null", "x");
  EXPECT_EQ(read_file("/dev/null"), "");
}

TEST_F(FilesTest, WritersOfAFileTakeTurns) {
  const auto content = [](char c) { return std::string(300000, c); };
  std::vector<std::thread> writers;
  for (const char c : {'a', 'b', 'c', 'd'}) {
    writers.emplace_back([&, c] {
      for (int i = 0; i < 20; ++i) {
        write_file(root_ / "x", [&](const Sink& sink) {
          for (int piece = 0; piece < 3; ++piece) sink(content(c).data(), 100000);
        });
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string last = read_file(root_ / "x");
  EXPECT_EQ(last, content(last[0]));
  EXPECT_FALSE(fs::exists(root_ / "x.tmp"));
}

TEST_F(FilesTest, RemovesWhatKilledWritersLeave) {
  for (const char* name : {"b.tokens", "a.tokens.tmp", "b.tokens.tmp", "c.tmp"}) {
    write_file(root_ / name, "x");
  }
  const int writer = ::open((root_ / "b.tokens.tmp").c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(writer, LOCK_EX), 0);
  remove_abandoned(root_, ".tokens");
  remove_abandoned(root_ / "none", ".tokens");
  EXPECT_FALSE(fs::exists(root_ / "a.tokens.tmp"));
  for (const char* name : {"b.tokens.tmp", "b.tokens", "c.tmp"}) {
    EXPECT_TRUE(fs::exists(root_ / name)) << name;
  }
  ::close(writer);
}

TEST_F(FilesTest, ReadsNoEndlessDevice) {
  if (!fs::is_character_file("/dev/zero")) GTEST_SKIP() << "needs a device without end";
  EXPECT_EQ(error_of([] { read_file("/dev/zero"); }),
            "cannot read '/dev/zero': it has no end within 1 MiB; must be a file");
}

TEST_F(FilesTest, ErrorsNameThePathAndTheReason) {
  const std::string name(5000, 'n');
  EXPECT_EQ(error_of([&] { read_file(name); }), "cannot read '" + name + "': File name too long");
  EXPECT_EQ(error_of([&] { write_file(name, ""); }),
            "cannot write '" + name + "': File name too long");
  EXPECT_EQ(error_of([] { write_file("/nowhere/x", "a"); }),
            "cannot write '/nowhere/x': No such file or directory");
  EXPECT_EQ(error_of([] { read_file("/nowhere/x"); }),
            "cannot read '/nowhere/x': No such file or directory");
  EXPECT_EQ(error_of([&] { read_file(root_); }),
            "cannot read '" + root_.string() + "': Is a directory");
}

}  // namespace
}  // namespace hopmix
