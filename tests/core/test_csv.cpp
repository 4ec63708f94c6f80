#include "core/csv.h"
#include "core/error.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::ContainsSubstring;

TEST_CASE("csv: fields, quotes, line ends and empty lines") {
  const CsvFile file = CsvFile::parse(
      "name,value,note\r\n\r\na,1.5e3,\n\"b, c\",-2,\"says \"\"no\"\"\nand goes on\"\nlast,0,end",
      "x.csv");
  CHECK(file.columns() == std::vector<std::string>{"name", "value", "note"});
  REQUIRE(file.rows() == 3);
  CHECK(file.at(0, "note").empty());
  CHECK(file.number(0, "value") == 1500);
  CHECK(file.at(1, "name") == "b, c");
  CHECK(file.at(1, "note") == "says \"no\"\nand goes on");
  CHECK(file.place(1) == "x.csv:4");
  CHECK(file.place(2) == "x.csv:6");  // the row above takes two lines
}

TEST_CASE("csv: what is wrong is named with file and line") {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c : {
           Case{"", "x.csv: found no line, expected names of columns"},
           Case{"a,b,a\n", "x.csv: found the column 'a' twice"},
           Case{"a,b\n1,2\n3\n", "x.csv:3: found 1 fields, expected 2"},
           Case{"a,b\n1,\"2\n", "x.csv:2: found a quote that is not closed"},
           Case{"a,b\n1,\"2\"3\n", "x.csv:2: found '3' behind a field"},
           Case{"a,b\n1,2\"3\n", "x.csv:2: found '\"' behind a field"},
       }) {
    INFO(c.text);
    CHECK_THROWS_WITH(CsvFile::parse(c.text, "x.csv"), ContainsSubstring(c.message));
  }
  const CsvFile file = CsvFile::parse("a\nx\n1 \nnan\n", "x.csv");
  CHECK_THROWS_WITH(file.at(0, "b"), ContainsSubstring("x.csv: found no column 'b', only a"));
  CHECK_THROWS_WITH(file.number(0, "a"),
                    ContainsSubstring("x.csv:2: a: found 'x', expected a number"));
  for (const std::size_t row : {1u, 2u}) CHECK_THROWS_AS(file.number(row, "a"), RuntimeError);
}

}  // namespace
}  // namespace kvsim
