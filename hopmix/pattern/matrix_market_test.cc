#include "hopmix/pattern/matrix_market.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"
#include "hopmix/pattern/dag_files.h"

namespace hopmix {
namespace {

constexpr const char* kHeader = "%%MatrixMarket matrix coordinate pattern general\n";

// Each test has its own file, removed at the end.
class MatrixMarket : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  std::string error(const std::string& text) {
    write_file(path_, text);
    try {
      read_matrix_market(path_);
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(path_.string() + ":")) << message;
      return message.substr(std::min(message.size(), path_.string().size() + 1));
    }
    return "no error";
  }

  const std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("hopmix dag (") + testing::UnitTest::GetInstance()->current_test_info()->name() +
       ") " + std::to_string(getpid()) + ".mtx");
};

TEST_F(MatrixMarket, ReadsEveryFieldInAnyOrder) {
  const std::string body =
      "% a comment\n\n4 4 4\n4 1 VALUE\n2 1 VALUE\n\n%x\n  4\t3 VALUE\r\n3 2 VALUE";
  for (const auto& [field, value] :
       {std::pair{"pattern", ""}, {"real", "0.5"}, {"Integer", "-3"}}) {
    std::string text =
        "%%matrixmarket Matrix coordinate " + std::string(field) + " GENERAL\n" + body;
    for (size_t at; (at = text.find("VALUE")) != std::string::npos;) text.replace(at, 5, value);
    write_file(path_, text);
    const Csr csr = read_matrix_market(path_);
    EXPECT_EQ(csr.row_ptr, (std::vector<int64_t>{0, 0, 1, 2, 4}));
    EXPECT_EQ(csr.cols, (std::vector<int32_t>{0, 1, 0, 2}));
  }
}

TEST_F(MatrixMarket, WhatIsWrittenReadsBack) {
  for (const char* spec : {"2^k", "cached(k^2+1)", "random(9,3)", "blocks(1)"}) {
    for (const int64_t n : {0, 1, 2, 65, 1000}) {
      const Csr csr = to_csr(Pattern(spec, n));
      write_matrix_market(path_, csr);
      const Csr again = read_matrix_market(path_);
      EXPECT_EQ(again.row_ptr, csr.row_ptr) << spec << n;
      EXPECT_EQ(again.cols, csr.cols) << spec << n;
    }
  }
}

TEST_F(MatrixMarket, ServesAsAPattern) {
  const Csr csr = to_csr(Pattern("2^k|random(3,1)", 70));
  write_matrix_market(path_, csr);
  const std::string spec = "dag( " + path_.string() + " )";  // the name has spaces and parentheses
  EXPECT_EQ(to_csr(Pattern(spec, 70)).cols, csr.cols);
  EXPECT_EQ(dag_files("fib|" + spec), std::vector<std::string>{path_.string()});
  EXPECT_TRUE(dag_files("fib").empty());
  EXPECT_EQ(Pattern(spec, 70).spec(), "dag(" + path_.string() + ")");
  // Fewer tokens use the first rows; more are an error.
  EXPECT_EQ(to_csr(Pattern(spec, 10)).cols, to_csr(Pattern("2^k|random(3,1)", 10)).cols);
  try {
    const Pattern pattern(spec, 71);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "pattern 'dag(" + path_.string() +
                                             ")': file at character 5: " + path_.string() +
                                             " has 70 rows, but n = 71 tokens need one each");
  }
  const Csr joined = to_csr(Pattern(spec + " | window(2)", 70));
  EXPECT_EQ(joined.cols, to_csr(Pattern("2^k|random(3,1)|window(2)", 70)).cols);
}

TEST_F(MatrixMarket, BadFilesNameTheLine) {
  const std::string header = kHeader;
  EXPECT_EQ(error(""),
            "1: the file is empty; it must begin with '%%MatrixMarket matrix coordinate pattern "
            "general'");
  EXPECT_EQ(error("hello\n"),
            "1: the file must begin with '%%MatrixMarket matrix coordinate pattern general'");
  EXPECT_EQ(error("%%MatrixMarket matrix array real general\n"),
            "1: format 'array' must be coordinate");
  EXPECT_EQ(error("%%MatrixMarket matrix coordinate complex general\n"),
            "1: field 'complex' must be pattern, real or integer");
  EXPECT_EQ(error("%%MatrixMarket matrix coordinate pattern symmetric\n"),
            "1: symmetry 'symmetric' must be general");
  EXPECT_EQ(error(header + "%\n"), "2: the line 'rows columns entries' is missing");
  EXPECT_EQ(error(header + "3 3\n"), "2: entries is missing");
  EXPECT_EQ(error(header + "3 4 0\n"), "2: a matrix of 3 by 4 must be square");
  EXPECT_EQ(error(header + "-1 -1 0\n"), "2: rows -1 must be from 0 to 2147483647");
  EXPECT_EQ(error(header + "3000000000 3000000000 0\n"),
            "2: rows 3000000000 must be from 0 to 2147483647");
  EXPECT_EQ(error(header + "3 3 -1\n"), "2: entries -1 must be at least 0");
  EXPECT_EQ(error(header + "3 x 1\n"), "2: columns 'x' must be a whole number");
  EXPECT_EQ(error(header + "3 3 1\n2 1.5\n"), "3: column '1.5' must be a whole number");
  EXPECT_EQ(error(header + "3 3 1\n2\n"), "3: column is missing");
  EXPECT_EQ(error(header + "3 3 1\n2 0\n"), "3: entry (2, 0) must lie within 1..3");
  EXPECT_EQ(error(header + "3 3 1\n4 1\n"), "3: entry (4, 1) must lie within 1..3");
  EXPECT_EQ(error(header + "3 3 1\n2 99999999999999999999\n"),
            "3: column '99999999999999999999' must be a whole number");
  EXPECT_EQ(error(header + "3 3 1\n2 2\n"),
            "3: entry (2, 2) must lie below the diagonal: tokens read only earlier tokens");
  EXPECT_EQ(error(header + "3 3 1\n\n1 3\n"),
            "4: entry (1, 3) must lie below the diagonal: tokens read only earlier tokens");
  EXPECT_EQ(error(header + "3 3 2\n2 1\n"), "3: the file ends after 1 of 2 entries");
  EXPECT_EQ(error(header + "3 3 1\n2 1\n3 1\n"), "4: entry (3, 1) exceeds the announced 1 entries");
  EXPECT_EQ(error(header + "3 3 3\n2 1\n3 1\n2 1\n"), "5: entry (2, 1) is given twice");
}

TEST_F(MatrixMarket, WhatIsNoFileIsAnError) {
  const auto error_of_dag = [](const std::string& file) {
    try {
      const Pattern pattern("dag(" + file + ")", 4);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string name(300, 'x');
  EXPECT_EQ(error_of_dag(name), "pattern 'dag(" + name + ")': file at character 5: cannot read '" +
                                    name + "': File name too long");
  EXPECT_EQ(error_of_dag("/"),
            "pattern 'dag(/)': file at character 5: cannot read '/': Is a directory");
  if (!std::filesystem::is_character_file("/dev/zero"))
    GTEST_SKIP() << "needs a device without end";
  EXPECT_NE(error_of_dag("/dev/zero").find("it has no end within 1 MiB"), std::string::npos);
}

TEST_F(MatrixMarket, AMissingFileIsNamed) {
  try {
    const Pattern pattern("window(1)|dag(no/such file.mtx)", 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "pattern 'window(1)|dag(no/such file.mtx)': file at character 15: cannot read "
              "'no/such file.mtx': No "
              "such file or directory");
  }
  EXPECT_THROW(write_matrix_market("no/such/folder.mtx", Csr{{0}, {}}), Error);
}

}  // namespace
}  // namespace hopmix
