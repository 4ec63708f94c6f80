// What the released SANTA kernels wait for, by hand for the shape that the paper times.

#include <vector>

#include "kernels/santa/released_cost.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;

DeviceLimits h200() {
  DeviceLimits limits;
  limits.sms = 132;
  limits.shared_bytes_per_sm = 228 * 1024;
  limits.threads_per_sm = 2048;
  return limits;
}

Shape shape_of(const std::vector<std::int64_t>& contexts) {
  Shape shape;
  shape.contexts = contexts;
  shape.q_heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = shape.v_head_dim = 128;
  return shape;
}

/// Every head draws one row in each of its tiles.
Statistics one_row_a_tile(double tiles) {
  Statistics s;
  s.v_rows = s.v_requests = s.draws = s.head_tiles = tiles * 32;
  s.group_tiles = tiles * 8;
  return s;
}

TEST_CASE("released pass1: a row a warp at a time, 4 CTAs an SM") {
  const std::vector<std::int64_t> contexts{32768};
  const Shape shape = shape_of(contexts);
  Stage stage;
  ReleasedPace(shape, 256, h200()).pass1(stage);
  CHECK(stage.launch.ctas == 128 * 8);
  CHECK(stage.launch.ctas_per_wave == 4 * 132);
  CHECK(stage.load_rounds == 2 * 32);  // two waves, 256 rows for 8 warps
  // 6 instructions, 5 steps of 4 shuffles and an add, 3 of the loop.
  CHECK(stage.round_cycles == Approx(9 * 5.5 + 5 * (25 + 3 * 4 + 5.5)));

  // An SM of Ada has room for 6 CTAs of 256 threads, registers for 4.
  DeviceLimits ada = h200();
  ada.threads_per_sm = 1536;
  ReleasedPace(shape, 256, ada).pass1(stage);
  CHECK(stage.launch.ctas_per_wave == 4 * 132);

  // Short contexts take the kernel with matrix instructions: 8 panels of 16 columns.
  const std::vector<std::int64_t> few{2048};
  ReleasedPace(shape_of(few), 64, h200()).pass1(stage);
  CHECK(stage.launch.ctas_per_wave == 16 * 132);
  CHECK(stage.load_rounds == 8);
}

TEST_CASE("released tile_budgets: the sort grows with the tiles, the atomics do not") {
  const std::vector<std::int64_t> contexts{32768};
  const Shape shape = shape_of(contexts);
  Stage tiles128;
  ReleasedPace(shape, 256, h200()).tile_budgets(tiles128);
  CHECK(tiles128.launch.ctas == 32);
  CHECK(tiles128.cache_trips == 3);
  CHECK(tiles128.chain_cycles > 128 * 82.5);  // one float atomic after the other
  CHECK(tiles128.chain_cycles < 128 * 82.5 + 5000);

  const std::vector<std::int64_t> longer{131072};  // 512 tiles, 4 for each thread
  const Shape long_shape = shape_of(longer);
  Stage tiles512;
  ReleasedPace(long_shape, 256, h200()).tile_budgets(tiles512);
  CHECK(tiles512.cache_trips == 15);
  // 45 passes of 4 pairs for each thread, where 28 of one were.
  const double more = tiles512.chain_cycles - tiles128.chain_cycles;
  CHECK(more > (45 * 4 - 28) * (29 + 8 * 5.5));
}

TEST_CASE("released pass2: stash and rows only where there are samples") {
  const std::vector<std::int64_t> contexts{32768};
  const Shape shape = shape_of(contexts);
  const ReleasedPace pace(shape, 256, h200());
  Stage all;
  pace.pass2(all, one_row_a_tile(128));
  CHECK(all.launch.ctas_per_wave == 4 * 132);
  CHECK(all.load_rounds == 2);
  CHECK(all.cache_trips == 2 * (1 + 8) - 1);

  Stage half;
  pace.pass2(half, one_row_a_tile(64));
  CHECK(half.load_rounds == 1);
  CHECK(half.cache_trips == 2 + 8 - 1);
  Stage one;  // a single tile is one CTA's whole way
  pace.pass2(one, one_row_a_tile(1));
  CHECK(one.load_rounds == 1);
  Stage none;
  pace.pass2(none, Statistics{});
  CHECK(none.load_rounds == 0);
  CHECK(none.cache_trips == 1);
}

TEST_CASE("released flash: scores and rows in one CTA, a thread over all tiles") {
  const std::vector<std::int64_t> contexts{32768};
  const Shape shape = shape_of(contexts);
  const ReleasedPace pace(shape, 256, h200());
  Statistics s = one_row_a_tile(128);
  s.v_rows = 64 * s.group_tiles;  // 16 rows of each of 4 heads
  s.v_requests = s.draws = 16 * s.head_tiles;
  Stage tile;
  pace.flash_tile(tile, s);
  CHECK(tile.launch.ctas_per_wave == 4 * 132);
  CHECK(tile.load_rounds == 2 * (32 + 4));  // keys one by one, rows by four
  Stage pass1;
  pace.pass1(pass1);
  CHECK(tile.round_cycles * 36 == Approx(pass1.round_cycles * 32 + 4 * 6 * 5.5));
  CHECK(tile.chain_cycles > pass1.chain_cycles + 2 * 16 * (60 + 12 * 5.5));
  Stage finalize;
  pace.flash_finalize(finalize);
  CHECK(finalize.launch.ctas == 32);
  CHECK(finalize.cache_trips == 2 + 128 / 4 - 1);
}

}  // namespace
}  // namespace kvsim
