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
  limits.l2_bytes = 50 << 20;
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

TEST_CASE("released pass1: a row a warp at a time, 5 CTAs an SM") {
  const std::vector<std::int64_t> contexts{32768};
  const Shape shape = shape_of(contexts);
  Stage stage;
  ReleasedPace(shape, 256, h200()).pass1(stage);
  CHECK(stage.launch.ctas == 128 * 8);
  CHECK(stage.launch.ctas_per_wave == 5 * 132);  // of 48 registers a thread
  CHECK(stage.load_rounds == 2 * 32);            // two waves, 256 rows for 8 warps
  CHECK(stage.load_warps == Approx(8 * 1024 / (2 * 132.0)));
  CHECK(stage.round_cycles == 348);
  CHECK(stage.chain_cycles == Approx(1.18 * 660 + 2 * (650 + 4 * 78)));

  // An SM of Ada has room for 6 CTAs of 256 threads, registers for 5.
  DeviceLimits ada = h200();
  ada.threads_per_sm = 1536;
  ReleasedPace(shape, 256, ada).pass1(stage);
  CHECK(stage.launch.ctas_per_wave == 5 * 132);

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
  // One float atomic after the other; 28 passes, in 25 of which the lanes of a warp part.
  CHECK(tiles128.chain_cycles == Approx(2831 + 128 * 82.5 + 28 * 214 + 25 * 18 + 7 * 53));

  const std::vector<std::int64_t> longer{131072};  // 512 tiles, 4 for each thread
  const Shape long_shape = shape_of(longer);
  Stage tiles512;
  ReleasedPace(long_shape, 256, h200()).tile_budgets(tiles512);
  CHECK(tiles512.cache_trips == 2 + 1 + 4 - 1);  // four at once, but for budgets
  // 45 passes of 4 pairs for each thread, where 28 of one were.
  const double more = tiles512.chain_cycles - tiles128.chain_cycles;
  CHECK(more == Approx(3 * 799 + 17 * 214 + 45 * 3 * 132 + 10 * 18 + 2 * 53));
}

TEST_CASE("released pass2: stash and rows only where there are samples") {
  constexpr double kEvicted = 1 - 0.8 * 50 / 64;  // 64 MiB of keys, of which the last 40 leave it

  const std::vector<std::int64_t> contexts{32768};
  const Shape shape = shape_of(contexts);
  const ReleasedPace pace(shape, 256, h200());
  Stage all;
  pace.pass2(all, one_row_a_tile(128));
  CHECK(all.launch.ctas_per_wave == 4 * 132);
  CHECK(all.load_rounds == Approx(2 + 16 * kEvicted));
  CHECK(all.cache_trips == Approx(1 + 16 * (1 - kEvicted)));

  Stage half;
  pace.pass2(half, one_row_a_tile(64));
  CHECK(half.load_rounds == Approx(1 + 8 * kEvicted));
  CHECK(half.cache_trips == Approx(1 + 8 * (1 - kEvicted)));
  Stage one;  // a single tile is one CTA's whole way
  pace.pass2(one, one_row_a_tile(1));
  CHECK(one.load_rounds == Approx(1 + 8 * kEvicted));
  Stage none;
  pace.pass2(none, Statistics{});
  CHECK(none.load_rounds == 0);
  CHECK(none.cache_trips == 1);
  // Of a short context nothing leaves the cache.
  const std::vector<std::int64_t> few{8192};
  Stage cached;
  ReleasedPace(shape_of(few), 256, h200()).pass2(cached, one_row_a_tile(32));
  CHECK(cached.load_rounds == 1);
  CHECK(cached.cache_trips == 8);
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
  CHECK(tile.launch.ctas_per_wave == 5 * 132);
  CHECK(tile.load_rounds == 2 * (32 + 16));  // keys and rows one by one
  CHECK(tile.round_cycles * 48 == Approx(358 * 32 + 68 * 16));
  Stage pass1;
  pace.pass1(pass1);
  CHECK(tile.chain_cycles > pass1.chain_cycles + 2 * (8 * (354 + 305) + 64 * 55));
  Stage finalize;
  pace.flash_finalize(finalize, s);
  CHECK(finalize.launch.ctas == 32);
  CHECK(finalize.load_warps == 8);  // of those SMs that have a CTA
  CHECK(finalize.chain_cycles == Approx(2305 + 128 * 15));
  CHECK(finalize.load_rounds + finalize.cache_trips == Approx(2 + 128 / 3.4 - 1));
  CHECK(finalize.load_rounds == Approx(128 / 3.4 * (1 - 0.8 * 50 / 80)));  // 64 MiB of K, 16 of V
}

}  // namespace
}  // namespace kvsim
