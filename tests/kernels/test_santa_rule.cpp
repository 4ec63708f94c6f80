// The integer rule of the SANTA samplers against plain arithmetic.

#include <numeric>
#include <set>

#include "kernels/attention.h"
#include "kernels/santa/budgets.h"
#include "kernels/santa/distribution.h"
#include "kernels/santa/released.h"
#include "kernels/santa/samplers.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

HeadDistribution random_head(std::int64_t rows, double peak, std::uint64_t seed, int tile) {
  const RandomStep step({.rows = rows, .group = 1, .peak = peak, .seed = seed});
  return HeadDistribution(exact_scores(step.view).head(0), tile);
}

TEST_CASE("token masses round to the nearest 2^-23") {
  CHECK(token_mass(0.0f) == 0);
  CHECK(token_mass(1.0f) == 1u << 23);
  CHECK(token_mass(0x1p-23f) == 1);
  CHECK(token_mass(0x1p-24f) == 0);  // a tie goes to the even neighbour
  CHECK(token_mass(3 * 0x1p-24f) == 2);
  std::mt19937 engine(7);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  for (int i = 0; i < 10000; ++i) {
    const float weight = uniform(engine);
    CHECK(std::abs(static_cast<double>(token_mass(weight)) -
                   static_cast<double>(weight) * 0x1p23) <= 0.5);
  }
}

TEST_CASE("head masses keep the tile's scale and are monotone") {
  CHECK(head_mass(1u << 23, tile_scale(1.0f)) == std::uint64_t{1} << 40);
  CHECK(head_mass(1u << 23, tile_scale(0.5f)) == std::uint64_t{1} << 39);
  CHECK(head_mass(1u << 31, tile_scale(1.0f)) == std::uint64_t{1} << 48);  // 256 tokens of weight 1
  CHECK(head_mass(1u << 31, tile_scale(0.0f)) == 0);
  CHECK(head_mass(1u << 23, tile_scale(0x1p-41f)) == 0);
  const TileScale scale = tile_scale(0.3f);
  std::uint64_t last = 0;
  for (std::uint32_t units = 0; units < 100000; units += 37) {
    const std::uint64_t mass = head_mass(units, scale);
    CHECK(mass >= last);
    CHECK(std::abs(static_cast<double>(mass) - units * static_cast<double>(0.3f) * 0x1p17) <= 1.0);
    last = mass;
  }
}

TEST_CASE("thresholds are exact floors and stay below the total") {
  std::mt19937_64 engine(11);
  for (int i = 0; i < 2000; ++i) {
    const auto samples = static_cast<std::uint32_t>(1 + engine() % 4096);
    const auto index = static_cast<std::uint32_t>(engine() % samples);
    const auto random24 = static_cast<std::uint32_t>(engine() % (1u << 24));
    const std::uint64_t total = 1 + engine() % (std::uint64_t{1} << 60);
    const std::uint64_t threshold = Strata::of(total, samples).threshold(index, random24);
    CHECK(threshold < total);
    // threshold <= position * total / (samples * 2^24) < threshold + 1
    const Uint128 exact = ((Uint128{index} << 24) + random24) * total;
    const Uint128 divisor = Uint128{samples} << 24;
    CHECK(Uint128{threshold} * divisor <= exact);
    CHECK(exact < (Uint128{threshold} + 1) * divisor);
  }
}

TEST_CASE("rows and thresholds of a tile are found without division") {
  std::mt19937_64 engine(14);
  for (int i = 0; i < 20000; ++i) {
    const auto divisor = static_cast<std::uint32_t>(1 + engine() % ((1u << (1 + i % 24)) - 1));
    const std::uint64_t most =
        std::min(std::uint64_t{divisor} << 31, std::uint64_t{1} << 56) - 1;  // limits
    const std::uint64_t quotient = engine() % (most / divisor + 1);
    for (const std::uint64_t value :
         {engine() % (most + 1), most, quotient * divisor, quotient * divisor + divisor - 1}) {
      CHECK(short_quotient(value, divisor) == value / divisor);
    }
    // The least units whose mass exceeds a mass.
    const TileScale scale = tile_scale(
        std::ldexp(1.0f + 0x1p-23f * static_cast<float>(engine() % (1u << 23)), -1 - i % 40));
    const auto units = static_cast<std::uint32_t>(1 + engine() % (1u << 31));
    const std::uint64_t whole = head_mass(units, scale);
    if (whole > 0) {
      const std::uint64_t mass = i % 5 == 0 ? whole - 1 : engine() % whole;
      const std::uint32_t least = units_above(mass, scale);
      CHECK(head_mass(least, scale) > mass);
      CHECK(head_mass(least - 1, scale) <= mass);
    }
    const auto samples = static_cast<std::uint32_t>(1 + engine() % (i % 2 == 0 ? 200u : 1u << 20));
    const auto sample = static_cast<std::uint32_t>(engine() % samples);
    const auto random24 = static_cast<std::uint32_t>(engine() % (1u << 24));
    CHECK(tile_threshold(units, samples, sample, random24) ==
          Strata::of(units, samples).threshold(sample, random24));
  }
}

TEST_CASE("thresholds below a mass are counted as one by one") {
  std::mt19937_64 engine(12);
  for (int i = 0; i < 500; ++i) {
    const auto samples = static_cast<std::uint32_t>(1 + engine() % 300);
    const std::uint64_t total = 1 + engine() % (std::uint64_t{1} << (1 + engine() % 60));
    const auto random24 = static_cast<std::uint32_t>(engine() % (1u << 24));
    const Strata strata = Strata::of(total, samples);
    const auto offset = [&](std::uint32_t m) { return random24 ^ (m * 7919u & 0xffffffu); };
    for (const std::uint64_t mass : {std::uint64_t{0}, engine() % total,
                                     strata.threshold(samples / 2, offset(samples / 2)), total}) {
      std::uint32_t count = 0;
      for (std::uint32_t m = 0; m < samples; ++m) {
        count += strata.threshold(m, offset(m)) < mass ? 1u : 0u;
      }
      CHECK(strata.below(mass, offset) == count);
    }
  }
}

TEST_CASE("budget shares are exact quotients and remainders") {
  std::mt19937_64 engine(13);
  for (int i = 0; i < 2000; ++i) {
    const auto samples = static_cast<std::uint32_t>(1 + engine() % (1u << 20));
    const std::uint64_t total = 1 + engine() % (std::uint64_t{1} << (1 + engine() % 60));
    const std::uint64_t mass = i % 10 == 0 ? total : engine() % total;
    const Share share = budget_share(mass, samples, total);
    const Uint128 product = Uint128{mass} * samples;
    CHECK(share.whole == static_cast<std::uint32_t>(product / total));
    CHECK(share.remainder == static_cast<std::uint64_t>(product % total));
  }
}

TEST_CASE("find is the first row whose cumulative mass exceeds the threshold") {
  for (const std::int64_t rows : {1, 31, 255, 256, 257, 700}) {
    const HeadDistribution head = random_head(rows, 3, static_cast<std::uint64_t>(rows), 256);
    std::mt19937_64 engine(5);
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t threshold = engine() % head.total();
      std::uint64_t cumulative = 0;
      std::int64_t row = 0;
      while ((cumulative += head.row_mass(row)) <= threshold) ++row;
      CHECK(head.find(threshold) == row);
    }
  }
}

TEST_CASE("masses are the softmax to float32 accuracy") {
  for (const double peak : {0.3, 2.0, 8.0}) {
    const RandomStep step({.rows = 1111, .group = 1, .peak = peak, .seed = 3});
    const Scores scores = exact_scores(step.view);
    const HeadDistribution head(scores.head(0), 256);
    const std::vector<double> p = softmax64(scores.head(0));
    for (std::int64_t row = 0; row < 1111; ++row) {
      const double mass =
          static_cast<double>(head.row_mass(row)) / static_cast<double>(head.total());
      CHECK(std::abs(mass - p[static_cast<std::size_t>(row)]) < 3e-7);
    }
  }
}

TEST_CASE("budgets sum to S and follow the tile masses") {
  for (const std::int64_t rows : {1, 63, 64, 65, 640, 6400, 7001}) {
    for (const std::uint32_t samples : {1u, 7u, 128u, 2048u}) {
      const HeadDistribution head = random_head(rows, 2, samples, 64);
      const auto remainder = largest_remainder_budgets(head, samples);
      const auto systematic = systematic_budgets(head, samples, 12345678u);
      CHECK(std::accumulate(remainder.begin(), remainder.end(), 0u) == samples);
      CHECK(std::accumulate(systematic.begin(), systematic.end(), 0u) == samples);
      for (int t = 0; t < head.tiles(); ++t) {
        const double share = static_cast<double>(samples) * static_cast<double>(head.tile_mass(t)) /
                             static_cast<double>(head.total());
        CHECK(std::abs(remainder[static_cast<std::size_t>(t)] - share) < 1.0);
        CHECK(std::abs(systematic[static_cast<std::size_t>(t)] - share) < 1.0 + 1e-9);
      }
    }
  }
}

TEST_CASE("largest remainders win, ties go to the lower tile") {
  const HeadDistribution head = random_head(6400, 1, 9, 64);
  constexpr std::uint32_t kSamples = 100;
  const auto budgets = largest_remainder_budgets(head, kSamples);
  double lowest_winner = 1;
  double highest_loser = 0;
  for (int t = 0; t < head.tiles(); ++t) {
    const Share share = budget_share(head.tile_mass(t), kSamples, head.total());
    const double remainder =
        static_cast<double>(share.remainder) / static_cast<double>(head.total());
    const bool won = budgets[static_cast<std::size_t>(t)] > share.whole;
    if (won) lowest_winner = std::min(lowest_winner, remainder);
    if (!won) highest_loser = std::max(highest_loser, remainder);
  }
  CHECK(lowest_winner >= highest_loser);
  // Equal tiles: all remainders tie, so the first tiles get the rest.
  const std::vector<float> flat(640, 0.25f);
  const auto tied = largest_remainder_budgets(HeadDistribution(flat, 64), 13);
  CHECK(tied == std::vector<std::uint32_t>{2, 2, 2, 1, 1, 1, 1, 1, 1, 1});
}

TEST_CASE("the released sort loses tiles when their number is no power of two") {
  // (tiles, lost) of the SANTA repository's in-place bitonic network, independent of the data.
  const std::vector<std::pair<std::size_t, std::size_t>> table{
      {2, 0},    {64, 0},   {79, 15},  {100, 36}, {114, 48}, {118, 48},
      {120, 48}, {128, 0},  {129, 1},  {130, 2},  {160, 32}, {192, 64},
      {200, 72}, {224, 96}, {240, 96}, {255, 28}, {256, 0}};
  for (const auto& [tiles, lost] : table) {
    for (const unsigned seed : {1u, 2u, 3u}) {
      std::mt19937 engine(seed);
      std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
      std::vector<float> remainders(tiles);
      for (float& f : remainders) f = uniform(engine);
      std::set<int> kept;
      for (const int tile : released_remainder_order(remainders)) {
        if (tile >= 0) kept.insert(tile);
      }
      INFO("tiles " << tiles);
      CHECK(tiles - kept.size() == lost);
    }
  }
}

TEST_CASE("up to a power of two the released sort is a descending sort") {
  std::mt19937 engine(4);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  std::vector<float> remainders(128);
  for (float& f : remainders) f = uniform(engine);
  const std::vector<int> order = released_remainder_order(remainders);
  for (std::size_t i = 1; i < order.size(); ++i) {
    CHECK(remainders[static_cast<std::size_t>(order[i - 1])] >=
          remainders[static_cast<std::size_t>(order[i])]);
  }
}

TEST_CASE("released offsets are splitmix64 of seed, head and tile") {
  // splitmix64 of state 0 starts with 0xe220a8397b1dcdaf.
  CHECK(released_offset(0, 0, 0) ==
        static_cast<float>(static_cast<double>(0xe220a8397b1dcdafull >> 11) * 0x1p-53));
  CHECK(released_offset(kReleasedSeed, 1, 0) != released_offset(kReleasedSeed, 0, 1));
}

TEST_CASE("a released tile draws its budget, or one more or less") {
  const RandomStep step({.rows = 30000, .group = 1, .peak = 3, .seed = 21});
  const Scores scores = exact_scores(step.view);
  std::int64_t off_by_one = 0;
  for (std::uint32_t head = 0; head < 8; ++head) {
    const ReleasedSelection selection = released_prop(scores.head(0), 256, 2048, head);
    std::vector<std::int64_t> drawn(selection.budgets.size(), 0);
    for (const std::int64_t row : selection.rows) ++drawn[static_cast<std::size_t>(row / 256)];
    for (std::size_t t = 0; t < drawn.size(); ++t) {
      const std::int64_t difference = drawn[t] - selection.budgets[t];
      CHECK(std::abs(difference) <= 1);
      off_by_one += difference != 0;
    }
  }
  CHECK(off_by_one > 0);  // bf16 rounding of the stash against fp32 sums does show
}

TEST_CASE("even budgets sum to S, differ by one at most, and leave no tile without a sample") {
  for (const int tiles : {1, 2, 33, 118, 128, 4096, 32768}) {
    for (const std::uint32_t samples : {1u, 7u, 128u, 2048u, 1u << 20}) {
      INFO(tiles << " tiles, " << samples << " samples");
      const std::vector<std::uint32_t> budgets = even_budgets(tiles, samples);
      const auto [least, most] = std::minmax_element(budgets.begin(), budgets.end());
      const auto sum = std::accumulate(budgets.begin(), budgets.end(), std::uint64_t{0});
      CHECK(sum == std::max<std::uint64_t>(samples, static_cast<std::uint64_t>(tiles)));
      CHECK(*least >= 1);
      CHECK(*most - *least <= 1);
    }
  }
}

TEST_CASE("released flash draws max(1, S / tiles) in a tile, or one more or less") {
  const RandomStep step({.rows = 30000, .group = 1, .peak = 2, .seed = 22});
  const Scores scores = exact_scores(step.view);
  // 118 tiles of 256: 17 each, 2006 of 2048 in all.
  const ReleasedSelection selection = released_flash(scores.head(0), 256, 2048, 5);
  CHECK(selection.budgets == std::vector<std::uint32_t>(118, 17));
  REQUIRE(selection.rows.size() == selection.weights.size());
  std::vector<int> drawn(118, 0);
  double weight = 0;
  for (std::size_t i = 0; i < selection.rows.size(); ++i) {
    ++drawn[static_cast<std::size_t>(selection.rows[i] / 256)];
    weight += selection.weights[i];
  }
  for (const int n : drawn) CHECK(std::abs(n - 17) <= 1);
  CHECK(weight == Approx(1).epsilon(0.02));  // the divisor is 17 all the same
}

}  // namespace
}  // namespace kvsim::testing
