// What the cost model is told of SANTA++'s instances is what they are.

#include "kernels/santapp/arguments.cuh"
#include "tests/catch.h"

namespace kvsim::santapp {
namespace {

template <int D, int kHeads8, bool kLarge>
void check() {
  INFO("heads of " << D << ", " << kHeads8 << " eights, large " << kLarge);
  using Shape = SantappShape<D, kHeads8, kLarge>;
  const CtaSizes sizes = cta_sizes(D, kHeads8, kLarge);
  CHECK(sizes.warps == int{Shape::kWarps});
  CHECK(sizes.stages == int{Shape::kStages});
  CHECK(sizes.front_bytes == int{Shape::kFront});
  CHECK(sizes.fixed_bytes == int{Shape::kStash});
}

TEST_CASE("santapp: the cost model's sizes are the kernel's") {
  check<64, 1, true>();
  check<64, 2, true>();
  check<128, 1, true>();
  check<128, 2, true>();
  check<256, 1, true>();
  check<256, 2, true>();
  check<64, 2, false>();
  check<128, 1, false>();
  check<256, 1, false>();
  CHECK(tile_words(7) == TileView::count(7));
}

}  // namespace
}  // namespace kvsim::santapp
