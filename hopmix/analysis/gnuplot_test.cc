#include "hopmix/analysis/gnuplot.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "hopmix/analysis/render.h"
#include "hopmix/base/files.h"
#include "hopmix/base/testing.h"

namespace hopmix {
namespace {

class Gnuplot : public testing::Test {
 protected:
  Gnuplot() { std::filesystem::create_directories(folder_); }
  ~Gnuplot() override { std::filesystem::remove_all(folder_); }

  std::string error(const std::string& script, const std::filesystem::path& output) {
    return error_of([&] { plot(script, output, 300, 200); });
  }

  // No temporary files remain.
  int files() const {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("hopmix 'plots' " + std::to_string(getpid()));
};

TEST_F(Gnuplot, DrawsByTheEnding) {
  for (const char* spec : {"2^k", "dense", "blocks(1)"}) {
    for (const int64_t n : {0, 1, 2, 64, 300}) {
      const std::string script = matrix_script(Pattern(spec, n));
      plot(script, folder_ / "a.svg", 300, 200);
      plot(script, folder_ / "a.png", 300, 200);
      EXPECT_NE(read_file(folder_ / "a.svg").find("<svg"), std::string::npos) << spec << n;
      const std::string png = read_file(folder_ / "a.png");
      ASSERT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n") << spec << n;
      EXPECT_EQ(png.substr(16, 8), std::string("\0\0\1\x2c\0\0\0\xc8", 8));  // 300 by 200
    }
  }
  EXPECT_EQ(files(), 2);
}

TEST_F(Gnuplot, TextIsShownAsItIs) {
  plot("set title " + gnuplot_string("it's k^2_x") + " noenhanced\nplot [0:1] x notitle",
       folder_ / "a.svg", 300, 200);
  EXPECT_NE(read_file(folder_ / "a.svg").find("it's k^2_x"), std::string::npos);
}

TEST_F(Gnuplot, AnotherEndingIsRefused) {
  EXPECT_EQ(error("plot x", folder_ / "a.gif"),
            "plot file '" + (folder_ / "a.gif").string() + "' must end in .svg or .png");
  EXPECT_EQ(files(), 0);
}

TEST_F(Gnuplot, ItsOwnComplaintIsPassedOn) {
  const std::filesystem::path output = folder_ / "a.png";
  write_file(output, "old");
  EXPECT_EQ(error("plot [0:1] x\nfoo bar", output),
            "cannot plot '" + output.string() + "': gnuplot says: line 2: invalid command");
  EXPECT_EQ(read_file(output), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(Gnuplot, APlaceThatCannotBeWrittenIsNamed) {
  const std::filesystem::path output = folder_ / "no" / "a.png";
  EXPECT_EQ(error("plot [0:1] x", output),
            "cannot write '" + output.string() + "': No such file or directory");
}

TEST_F(Gnuplot, ALinkIsFollowed) {
  std::filesystem::create_symlink("a.svg", folder_ / "link.svg");
  plot("plot [0:1] x", folder_ / "link.svg", 300, 200);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link.svg"));
  EXPECT_NE(read_file(folder_ / "a.svg").find("<svg"), std::string::npos);
}

TEST_F(Gnuplot, AMissingProgramIsNamed) {
  const std::string path = getenv("PATH");
  setenv("PATH", folder_.c_str(), 1);
  const std::string message = error("plot x", folder_ / "a.png");
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(message, "cannot plot '" + (folder_ / "a.png").string() +
                         "': the program gnuplot is not installed or not on PATH");
}

}  // namespace
}  // namespace hopmix
