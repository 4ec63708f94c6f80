#include <array>
#include <cstdint>
#include <set>

#include "core/philox.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

std::array<std::uint32_t, 4> run(RandomWords counter, std::uint64_t key) {
  const RandomWords words = philox4x32(counter, key);
  return {words.word[0], words.word[1], words.word[2], words.word[3]};
}

}  // namespace

TEST_CASE("philox4x32-10 gives the known answers of its authors") {
  CHECK(run({{0, 0, 0, 0}}, 0) ==
        std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t kOnes = 0xffffffff;
  CHECK(run({{kOnes, kOnes, kOnes, kOnes}}, ~std::uint64_t{0}) ==
        std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  // Digits of pi; the first key word is the low one.
  CHECK(run({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822ull) ==
        std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("every part of a stream's place changes its words") {
  RandomStream stream;
  stream.seed = 1;
  std::set<std::uint32_t> words{stream.word(0)};
  const auto add = [&](RandomStream changed) { words.insert(changed.word(0)); };
  RandomStream other = stream;
  other.seed = 2;
  add(other);
  other = stream;
  other.seed = std::uint64_t{1} << 32;
  add(other);
  other = stream;
  other.purpose = Purpose::kSynthetic;
  add(other);
  other = stream;
  other.layer = 1;
  add(other);
  other = stream;
  other.step = 1;
  add(other);
  other = stream;
  other.sequence = 1;
  add(other);
  other = stream;
  other.head = 1;
  add(other);
  words.insert(stream.word(4));
  CHECK(words.size() == 9);
}

TEST_CASE("words of a stream are those of its blocks, thresholds stay below 2^24") {
  RandomStream stream;
  stream.seed = 99;
  for (std::uint32_t i = 0; i < 64; ++i) {
    CHECK(stream.word(i) == stream.block(i / 4).word[i % 4]);
    CHECK(stream.threshold24(i) == stream.word(i) >> 8);
    CHECK(stream.threshold24(i) < (1u << 24));
  }
}

}  // namespace kvsim
