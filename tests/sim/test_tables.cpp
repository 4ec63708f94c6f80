#include "core/table.h"
#include "sim/index_list.h"
#include "sim/summary.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

TEST_CASE("a table aligns its columns and counts code points") {
  Table table({"", "a", "long name"});
  table.add_row({"time, µs", "1.5", "2"});
  table.add_row({"x", "10", ""});
  CHECK(table.text() ==
        "            a  long name\n"
        "time, µs  1.5          2\n"
        "x          10\n");
  CHECK_THROWS(table.add_row({"too few"}));
}

TEST_CASE("index lists name what is there") {
  const std::vector<std::int64_t> layers{0, 3, 7, 8, 9};
  using Indices = std::vector<std::int64_t>;
  CHECK(IndexList().pick(layers, "x") == layers);
  CHECK(IndexList::parse("7-9,0,8", "--layers").pick(layers, "x") == Indices{0, 7, 8, 9});
  for (const char* bad : {"", ",", "a", "1-", "-1", "3-1", "1,,2", "1 2", "99999999999"}) {
    CHECK_THROWS_AS(IndexList::parse(bad, "--layers"), UsageError);
  }
  CHECK_THROWS_WITH(
      IndexList::parse("4", "--layers").pick(layers, "trace x.h5"),
      testing::ContainsSubstring("--layers: trace x.h5 has no 4, only 0, 3, 7, 8, 9"));
}

TEST_CASE("percentiles are nearest-rank") {
  const std::vector<double> values{1, 2, 3, 4};
  CHECK(nearest_rank(values, 50) == 2);
  CHECK(nearest_rank(values, 51) == 3);
  CHECK(nearest_rank(values, 95) == 4);
  CHECK(nearest_rank(values, 100) == 4);
  CHECK(nearest_rank(values, 0) == 1);
  CHECK(nearest_rank(std::vector<double>{7}, 95) == 7);
}

}  // namespace
}  // namespace kvsim
