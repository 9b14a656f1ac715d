#include "hopmix/config/config.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hopmix/base/testing.h"

namespace hopmix::config {
namespace {

TEST(Config, DefaultsAreWrittenBack) {
  toml::table document = parse("a = 1", "test");
  Table table(document);
  EXPECT_EQ(table.get("a", 5), 1);
  EXPECT_EQ(table.get("b", 2.5), 2.5);
  EXPECT_EQ(table.get("c", "x"), "x");
  EXPECT_EQ(table.table("t").get("d", true), true);
  table.finish();
  const toml::table again = parse(to_string(document), "again");
  EXPECT_EQ(again, document);
  EXPECT_EQ(again["b"].value<double>(), 2.5);
  EXPECT_EQ(again["t"]["d"].value<bool>(), true);
}

TEST(Config, LineEndsAreWrittenBack) {
  for (const std::string text :
       {"\n\n", "\n", "\r\n\r\n", "a\n", "\t\n", "'''\n", "\"\"\"\n'''", "\x01\n"}) {
    toml::table document{{"separator", text}};
    const std::string written = to_string(document);
    EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 1) << written;
    EXPECT_EQ(parse(written, "again")["separator"].value<std::string>(), text);
    EXPECT_EQ(written, "separator = " + in_one_line(text) + "\n");
  }
  EXPECT_EQ(in_one_line("\n\n"), "\"\\n\\n\"");
}

TEST(Config, TypesAreChecked) {
  toml::table document = parse("a = 'x'\nb = 1\nc = 1.5\nlist = [1]", "test");
  Table table(document);
  EXPECT_EQ(error_of([&] { table.get("a", 1); }), "a = 'x': must be an integer");
  EXPECT_EQ(error_of([&] { table.get("c", 1); }), "c = 1.5: must be an integer");
  EXPECT_EQ(error_of([&] { table.get("b", "s"); }),
            "b = 1: must be a string: put it in quotes, b = \"...\", or in a shell, --set "
            "'b=\"...\"'");
  EXPECT_EQ(error_of([&] { table.get("list", "s"); }), "list = [ 1 ]: must be a string");
  EXPECT_EQ(error_of([&] { table.get("a", false); }), "a = 'x': must be true or false");
  EXPECT_EQ(table.get("b", 0.5), 1.0);
  EXPECT_EQ(error_of([&] { table.table("b"); }), "b = 1: must be a table");
  EXPECT_EQ(error_of([&] { table.tables("list"); }), "list = [ 1 ]: must be an array of tables");
  EXPECT_EQ(error_of([&] { table.strings("list"); }), "list = [ 1 ]: must be an array of strings");
  EXPECT_EQ(error_of([&] { table.get_at_least("b", 1, 2); }), "b = 1: must be at least 2");
  EXPECT_EQ(error_of([&] { table.get_between("b", 1, 2, 3); }), "b = 1: must be at least 2");
  EXPECT_EQ(error_of([&] { table.get_between("b", 1, 0, 0); }), "b = 1: must be at most 0");
  EXPECT_EQ(table.get_between("b", 7, 1, 1), 1);
}

TEST(Config, AStringThatLooksLikeAnotherValueSaysHowToQuoteIt) {
  for (const std::string text : {"2024-01-01", "123", "1e5", "true", "07:30:00"}) {
    toml::table document;
    set(document, "task.path=" + text);
    const std::string message = error_of([&] { Table(document).table("task").require("path"); });
    EXPECT_TRUE(
        message.ends_with(": must be a string: put it in quotes, path = \"...\", or in a "
                          "shell, --set 'task.path=\"...\"'"))
        << message;
    set(document, "task.path=\"" + text + "\"");
    EXPECT_EQ(Table(document).table("task").require("path"), text);
  }
}

TEST(Config, UnknownKeysSuggestTheNearest) {
  toml::table document = parse("[train]\nstepz = 1", "test");
  Table root(document);
  Table train = root.table("train");
  train.get("steps", 3);
  train.get("batch", 3);
  root.finish();
  EXPECT_EQ(error_of([&] { train.finish(); }), "unknown key 'train.stepz'; did you mean 'steps'?");
}

TEST(Config, ParseErrorsPointAtThePlace) {
  EXPECT_EQ(error_of([] { parse("a = 1\nb = = 2\n", "f.toml"); }).substr(0, 22),
            "f.toml:2:5: not TOML: ");
  EXPECT_NE(error_of([] { parse_file("/nowhere/x.toml"); }).find("/nowhere/x.toml"),
            std::string::npos);
}

TEST(Config, SetReachesTablesAndArrays) {
  toml::table document =
      parse("[train]\nsteps = 1\n[[blocks]]\nm = 'a'\n[[blocks]]\nm = 'b'", "test");
  set(document, "train.steps=7");
  set(document, "train.lr=1e-3");
  set(document, "blocks.1.pattern=cached(2^k)");
  set(document, "new.deep.key=true");
  set(document, "text=2^k|window(3)");
  set(document, "empty=");
  EXPECT_EQ(document["train"]["steps"].value<int64_t>(), 7);
  EXPECT_EQ(document["train"]["lr"].value<double>(), 1e-3);
  EXPECT_EQ(document["blocks"][1]["pattern"].value<std::string>(), "cached(2^k)");
  EXPECT_EQ(document["new"]["deep"]["key"].value<bool>(), true);
  EXPECT_EQ(document["text"].value<std::string>(), "2^k|window(3)");
  EXPECT_EQ(document["empty"].value<std::string>(), "");
  EXPECT_EQ(error_of([&] { set(document, "blocks.2.m=1"); }),
            "--set blocks.2.m=1: '2' must be an index from 0 to 2 (exclusive)");
  EXPECT_EQ(error_of([&] { set(document, "train.steps.x=1"); }),
            "--set train.steps.x=1: 'steps' holds a value, not a table");
  EXPECT_NE(error_of([&] { set(document, "novalue"); }).find("must have the form key=value"),
            std::string::npos);
}

}  // namespace
}  // namespace hopmix::config
