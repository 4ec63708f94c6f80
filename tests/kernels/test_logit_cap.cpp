#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/logit_cap.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

TEST_CASE("exact_tanh is within 2^-22 of tanh, odd, and 1 at the far end") {
  double worst = 0;
  for (float x = 0x1p-100f; x < 20; x += std::fmax(x * 0x1p-10f, 0x1p-120f)) {
    const double expected = std::tanh(static_cast<double>(x));
    worst = std::fmax(worst, std::fabs(exact_tanh(x) - expected) / expected);
    REQUIRE(exact_tanh(-x) == -exact_tanh(x));
  }
  CHECK(worst < 0x1p-22);
  CHECK(exact_tanh(0.0f) == 0.0f);
  CHECK(exact_tanh(50.0f) == 1.0f);
  CHECK(exact_tanh(-INFINITY) == -1.0f);
  CHECK(std::isnan(exact_tanh(NAN)));
}

TEST_CASE("capped logits keep their order, but for rounding, and stay below the cap") {
  float before = -50;
  for (float logit = -400; logit < 400; logit += 0.01f) {
    const float capped = capped_logit(logit, 50);
    CHECK(capped >= before - 50 * 0x1p-22f);
    CHECK(std::fabs(capped) <= 50);
    before = capped;
  }
  CHECK(capped_logit(1, 1e6f) == testing::Approx(1));
}

TEST_CASE("capped logits are the same bits everywhere") {
  std::uint64_t digest = 0xcbf29ce484222325ull;  // FNV-1a
  for (int i = -4000; i <= 4000; ++i) {
    const float capped = capped_logit(static_cast<float>(i) * 0.03125f, 30);
    digest = (digest ^ std::bit_cast<std::uint32_t>(capped)) * 0x100000001b3ull;
  }
  CHECK(digest == 0x8b5386a3fe429a27ull);
}

}  // namespace
}  // namespace kvsim
