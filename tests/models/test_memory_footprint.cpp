#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "models/memory/traffic.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::ContainsSubstring;

constexpr CacheLayout kHnd{LayoutKind::kHnd};
constexpr CacheLayout kNhd{LayoutKind::kNhd};

MemorySystem memory_of(int sector, int atom, int page) {
  MemorySystem memory;
  memory.sector_bytes = sector;
  memory.atom_bytes = atom;
  memory.row_bytes = page;
  return memory;
}

const MemorySystem kMemory = memory_of(32, 64, 1024);

/// A stream of random integers that is the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : stream_{seed} {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(stream_.word(next_++) % static_cast<std::uint64_t>(n));
  }
  /// `rows` distinct rows of `tokens`.
  RowRanges rows(std::int64_t rows, std::int64_t tokens) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
      std::swap(all[i],
                all[i + static_cast<std::size_t>(below(tokens - static_cast<std::int64_t>(i)))]);
    }
    all.resize(static_cast<std::size_t>(rows));
    std::sort(all.begin(), all.end());
    return RowRanges::of(all);
  }

 private:
  RandomStream stream_;
  std::uint32_t next_ = 0;
};

RowRanges rows_of(std::vector<std::int64_t> rows) { return RowRanges::of(rows); }

Footprint exact(const std::vector<RowRanges>& rows, std::int64_t tokens, double row_bytes,
                const CacheLayout& layout, const MemorySystem& memory = kMemory) {
  return exact_footprint(rows, tokens, packed(row_bytes), layout, memory);
}

/// Counts granules by marking every byte (rows of whole bytes only).
Footprint by_bytes(const std::vector<RowRanges>& rows, std::int64_t tokens, std::int64_t row_bytes,
                   std::int64_t stride, LayoutKind kind, const MemorySystem& memory) {
  const auto heads = static_cast<std::int64_t>(rows.size());
  std::set<std::int64_t> sectors;
  std::set<std::int64_t> atoms;
  std::set<std::int64_t> pages;
  std::vector<bool> touched(static_cast<std::size_t>(heads * tokens * stride + 1), false);
  for (std::int64_t head = 0; head < heads; ++head) {
    for (const Range& range : rows[static_cast<std::size_t>(head)].ranges()) {
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        const std::int64_t row = kind == LayoutKind::kHnd ? head * tokens + t : t * heads + head;
        for (std::int64_t byte = row * stride; byte < row * stride + row_bytes; ++byte) {
          sectors.insert(byte / memory.sector_bytes);
          atoms.insert(byte / memory.atom_bytes);
          pages.insert(byte / memory.row_bytes);
          touched[static_cast<std::size_t>(byte)] = true;
        }
      }
    }
  }
  double runs = 0;
  for (std::size_t i = 0; i + 1 < touched.size(); ++i)
    runs += touched[i] && !touched[i + 1] ? 1 : 0;
  return {static_cast<double>(sectors.size()) * memory.sector_bytes,
          static_cast<double>(atoms.size()) * memory.atom_bytes, static_cast<double>(pages.size()),
          runs};
}

void check_equal(const Footprint& a, const Footprint& b) {
  CHECK(a.sector_bytes == b.sector_bytes);
  CHECK(a.atom_bytes == b.atom_bytes);
  CHECK(a.activations == b.activations);
  CHECK(a.runs == b.runs);
}

TEST_CASE("layouts and cache states are parsed") {
  CHECK(parse_cache_layout("hnd").kind == LayoutKind::kHnd);
  CHECK(parse_cache_layout("nhd").kind == LayoutKind::kNhd);
  CHECK(parse_cache_layout("paged").kind == LayoutKind::kPaged);
  CHECK(parse_cache_layout("paged").page_tokens == 16);
  CHECK(parse_cache_layout("paged:64").page_tokens == 64);
  for (const char* bad : {"", "HND", "paged:", "paged:0", "paged:-1", "paged:6x", "page"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_cache_layout(bad), UsageError);
  }
  CHECK_THROWS_WITH(parse_cache_layout("rows"), ContainsSubstring("hnd, nhd, paged"));
  CHECK(to_string(LayoutKind::kPaged) == "paged");
  CHECK(parse_cache_state("cold") == CacheState::kCold);
  CHECK(parse_cache_state("warm") == CacheState::kWarm);
  CHECK_THROWS_AS(parse_cache_state("hot"), UsageError);
  CHECK(to_string(CacheState::kWarm) == "warm");
}

TEST_CASE("aligned rows waste nothing") {
  // 256 B rows: 4 to a DRAM page; rows 0, 1 and 5 lie in pages 0 and 1.
  check_equal(exact({rows_of({0, 1, 5})}, 8, 256, kHnd), {768, 768, 2, 2});
  // Two heads of 8 rows each: the second begins at byte 2048.
  check_equal(exact({rows_of({0}), rows_of({0, 7})}, 8, 256, kHnd), {768, 768, 3, 3});
  // nhd: a token's heads are neighbours, so token 0 is one run of 512 B.
  check_equal(exact({rows_of({0}), rows_of({0, 7})}, 8, 256, kNhd), {768, 768, 2, 2});
  check_equal(exact({}, 8, 256, kHnd), {0, 0, 0, 0});
  check_equal(exact({RowRanges()}, 8, 256, kNhd), {0, 0, 0, 0});
}

TEST_CASE("unaligned rows share sectors and atoms, which count once") {
  // 40 B rows: row 0 = bytes 0-40 (sectors 0, 1; atom 0), row 1 = bytes 40-80 (sectors 1, 2; atoms
  // 0, 1).
  check_equal(exact({rows_of({0})}, 100, 40, kHnd), {64, 64, 1, 1});
  check_equal(exact({rows_of({1})}, 100, 40, kHnd), {64, 128, 1, 1});
  check_equal(exact({rows_of({0, 1})}, 100, 40, kHnd), {96, 128, 1, 1});
  check_equal(exact({rows_of({0, 2})}, 100, 40, kHnd), {128, 128, 1, 2});
  // Three tokens: head 1 begins at byte 120, inside the sector where head 0 ends.
  check_equal(exact({rows_of({2}), rows_of({0})}, 3, 40, kHnd), {96, 128, 1, 1});
  // nhd with 16 B rows: both heads' rows of a token are one sector.
  check_equal(exact({rows_of({0}), RowRanges()}, 4, 16, kNhd), {32, 64, 1, 1});
  check_equal(exact({rows_of({0}), rows_of({0})}, 4, 16, kNhd), {32, 64, 1, 1});
  check_equal(exact({rows_of({0}), rows_of({1})}, 4, 16, kNhd), {64, 64, 1, 2});
}

TEST_CASE("rows of a fractional number of bytes are laid end to end") {
  // 42.5 B: row 2 ends at 127.5 and row 3 begins there, both in sector 3.
  check_equal(exact({rows_of({2})}, 100, 42.5, kHnd), {64, 64, 1, 1});
  check_equal(exact({rows_of({3})}, 100, 42.5, kHnd), {96, 128, 1, 1});
  check_equal(exact({rows_of({2, 3})}, 100, 42.5, kHnd), {128, 128, 1, 1});
  // Thirds of a byte do not accumulate: 96 rows of 1/3 B are 32 B.
  check_equal(exact({RowRanges::all(96)}, 1000, 1.0 / 3, kHnd), {32, 64, 1, 1});
}

TEST_CASE("V of a latent cache lies a whole row apart") {
  // The first 512 of 576 bf16 elements: 1024 B every 1152 B. Row 1 ends in the third DRAM page.
  const RowSize v{1024, 1152};
  check_equal(exact_footprint(std::vector{rows_of({0, 1})}, 8, v, kHnd, kMemory),
              {2048, 2048, 3, 2});
  // Every row: the 128 B behind V are whole sectors and atoms that nobody asks for.
  check_equal(exact_footprint(std::vector{RowRanges::all(512)}, 512, v, kHnd, kMemory),
              {524288, 524288, 576, 512});
}

TEST_CASE("pages scatter runs but keep aligned bytes") {
  const CacheLayout paged{LayoutKind::kPaged, 16};
  // A page of 16 rows of 256 B is 4 DRAM pages per head, so the order of pages changes nothing …
  Random random(1);
  const std::vector<RowRanges> rows{random.rows(100, 500), random.rows(40, 500)};
  const Footprint hnd = exact(rows, 512, 256, kHnd);
  const Footprint pages = exact(rows, 512, 256, paged);
  CHECK(pages.sector_bytes == hnd.sector_bytes);
  CHECK(pages.atom_bytes == hnd.atom_bytes);
  CHECK(pages.activations == hnd.activations);
  CHECK(pages.runs >= hnd.runs);
  // … and a whole cache is read page by page: 32 of 4 KB for each of 2 heads.
  check_equal(exact({RowRanges::all(512), RowRanges::all(512)}, 512, 256, paged),
              {262144, 262144, 256, 64});
  // A long range is cut at page borders.
  RowRanges range;
  range.append(8, 72);
  CHECK(exact({range, RowRanges()}, 512, 256, paged).runs == 5);
}

TEST_CASE("unaligned pages share at most their borders") {
  Random random(2);
  for (int round = 0; round < 20; ++round) {
    const std::int64_t tokens = 10 + random.below(60);
    const CacheLayout paged{LayoutKind::kPaged, static_cast<int>(1 + random.below(7))};
    const std::int64_t row_bytes = 1 + random.below(50);
    const std::vector<RowRanges> rows{random.rows(random.below(tokens), tokens),
                                      random.rows(random.below(tokens), tokens)};
    double pieces = 0;  // (page, head) blocks, each on its own
    double rows_alone = 0;
    for (const RowRanges& set : rows) {
      for (const Range& range : set.ranges()) {
        for (std::int64_t t = range.begin; t < range.end; ++t) {
          rows_alone +=
              exact({rows_of({t})}, tokens, static_cast<double>(row_bytes), kHnd).sector_bytes;
        }
      }
      pieces += static_cast<double>(set.size());
    }
    const Footprint a = exact(rows, tokens, static_cast<double>(row_bytes), paged);
    CHECK(a.sector_bytes >= std::floor(pieces * static_cast<double>(row_bytes) / 32) * 32);
    CHECK(a.sector_bytes <= rows_alone + 64 * pieces);
    check_equal(a, exact(rows, tokens, static_cast<double>(row_bytes), paged));  // a fixed order
  }
  // One page holds all tokens, so it is hnd with room for a page per head.
  const std::vector<RowRanges> rows{rows_of({0, 3}), rows_of({1})};
  check_equal(exact(rows, 4, 40, {LayoutKind::kPaged, 8}), exact(rows, 8, 40, kHnd));
}

TEST_CASE("exact footprints equal a bitmap of bytes") {
  Random random(3);
  const MemorySystem memories[] = {memory_of(32, 64, 1024), memory_of(32, 32, 256),
                                   memory_of(16, 64, 128)};
  for (int round = 0; round < 200; ++round) {
    const std::int64_t tokens = 1 + random.below(200);
    const std::int64_t row_bytes = 1 + random.below(round % 2 == 0 ? 80 : 300);
    std::vector<RowRanges> rows;
    for (std::int64_t head = 1 + random.below(5); head > 0; --head) {
      rows.push_back(round % 3 == 0 && random.below(2) == 0
                         ? RowRanges::all(tokens)
                         : random.rows(random.below(tokens + 1), tokens));
    }
    const MemorySystem& memory = memories[round % 3];
    for (const CacheLayout& layout : {kHnd, kNhd}) {
      INFO("round " << round << ", " << to_string(layout.kind) << ", row of " << row_bytes);
      check_equal(exact(rows, tokens, static_cast<double>(row_bytes), layout, memory),
                  by_bytes(rows, tokens, row_bytes, row_bytes, layout.kind, memory));
      const std::int64_t stride = row_bytes + 1 + round % 70;
      const RowSize apart{static_cast<double>(row_bytes), static_cast<double>(stride)};
      check_equal(exact_footprint(rows, tokens, apart, layout, memory),
                  by_bytes(rows, tokens, row_bytes, stride, layout.kind, memory));
    }
  }
}

TEST_CASE("exact footprints grow with the set and never exceed the tensor") {
  Random random(4);
  for (const CacheLayout& layout : {kHnd, kNhd, CacheLayout{LayoutKind::kPaged, 16}}) {
    for (const double row_bytes : {20.0, 42.5, 128.0}) {
      const RowRanges few = random.rows(30, 400);
      const RowRanges more = random.rows(90, 400);
      const RowRanges* sets[] = {&few, &more};
      const RowRanges both = RowRanges::unite(sets);
      const Footprint small = exact({few, few}, 400, row_bytes, layout);
      const Footprint large = exact({both, both}, 400, row_bytes, layout);
      CHECK(small.sector_bytes <= large.sector_bytes);
      CHECK(small.atom_bytes <= large.atom_bytes);
      CHECK(small.activations <= large.activations);
      CHECK(small.sector_bytes <= small.atom_bytes);
      CHECK(large.atom_bytes <= 2 * 400 * row_bytes + 64);
      CHECK(small.sector_bytes >= 2 * 30 * row_bytes - 1e-9);
    }
  }
}

TEST_CASE("expected footprints are the mean of exact ones over random rows") {
  struct Case {
    double rows;
    std::int64_t tokens;
    int heads;
    double row_bytes;
    double stride = row_bytes;
  };
  const Case cases[] = {{60, 600, 1, 40, 56}, {200, 600, 1, 8, 40}, {50, 500, 2, 1024, 1152},
                        {60, 600, 2, 256},    {10, 600, 4, 40},     {300, 600, 2, 40},
                        {50, 500, 3, 16},     {200, 500, 2, 42.5},  {20, 500, 8, 16},
                        {100, 400, 2, 160},   {100, 400, 2, 20},    {5, 400, 4, 128},
                        {390, 400, 2, 96},    {64, 512, 4, 8},      {1, 300, 2, 80}};
  Random random(5);
  constexpr int kTrials = 150;
  for (const Case& c : cases) {
    for (const CacheLayout& layout : {kHnd, kNhd, CacheLayout{LayoutKind::kPaged, 16}}) {
      INFO(to_string(layout.kind) << ": " << c.rows << " of " << c.tokens << " rows of "
                                  << c.row_bytes << " every " << c.stride);
      const RowSize row{c.row_bytes, c.stride};
      Footprint sum;
      Footprint squares;
      for (int trial = 0; trial < kTrials; ++trial) {
        std::vector<RowRanges> rows;
        for (int head = 0; head < c.heads; ++head) {
          rows.push_back(random.rows(static_cast<std::int64_t>(c.rows), c.tokens));
        }
        const Footprint f = exact_footprint(rows, c.tokens, row, layout, kMemory);
        sum += f;
        squares += {f.sector_bytes * f.sector_bytes, f.atom_bytes * f.atom_bytes,
                    f.activations * f.activations, f.runs * f.runs};
      }
      const Footprint e =
          expected_footprint(c.rows, static_cast<double>(c.tokens), c.heads, row, layout, kMemory);
      // Four standard errors, 0.2 % for the borders of heads and pages, and the one granule (two in
      // a paged cache, whose last page is not full) that the end of the tensor does not fill.
      const double ends = layout.kind == LayoutKind::kPaged ? 2 : 1;
      const auto check = [ends](double expected, double total, double square, double granule) {
        const double mean = total / kTrials;
        const double variance = std::max(0.0, square / kTrials - mean * mean);
        CHECK(std::abs(expected - mean) <=
              4 * std::sqrt(variance / kTrials) + 0.002 * mean + ends * granule);
      };
      check(e.sector_bytes, sum.sector_bytes, squares.sector_bytes, kMemory.sector_bytes);
      check(e.atom_bytes, sum.atom_bytes, squares.atom_bytes, kMemory.atom_bytes);
      check(e.activations, sum.activations, squares.activations, 1);
      if (layout.kind != LayoutKind::kNhd) check(e.runs, sum.runs, squares.runs, 1);
    }
  }
}

TEST_CASE("expected footprints of none and of all rows are exact") {
  const auto paged = [](int tokens) { return CacheLayout{LayoutKind::kPaged, tokens}; };
  const RowSize sizes[] = {packed(42.5), packed(40), packed(256), {1024, 1152}, {20, 43}};
  for (const CacheLayout& layout : {kHnd, kNhd, paged(1), paged(7), paged(16), paged(4096)}) {
    for (const RowSize& row : sizes) {
      for (const std::int64_t tokens : {1, 16, 1000, 1024}) {
        INFO(to_string(layout.kind) << ":" << layout.page_tokens << ", " << tokens << " rows of "
                                    << row.bytes << " every " << row.stride);
        const std::vector<RowRanges> all{RowRanges::all(tokens), RowRanges::all(tokens)};
        const auto n = static_cast<double>(tokens);
        check_equal(expected_footprint(n, n, 2, row, layout, kMemory),
                    exact_footprint(all, tokens, row, layout, kMemory));
        check_equal(expected_footprint(0, n, 2, row, layout, kMemory), {});
      }
    }
  }
  // Averages over steps may be fractions of a row.
  CHECK(expected_footprint(0.5, 1000, 2, packed(256), kHnd, kMemory).sector_bytes == Approx(256));
}

}  // namespace
}  // namespace kvsim
