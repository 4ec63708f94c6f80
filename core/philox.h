#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace kvsim {

struct RandomWords {
  std::uint32_t word[4];
};

/// Philox 4x32-10 (Salmon et al., SC'11): a counter-based generator, so any word of any stream is
/// had without the ones before it, on any thread, rank or device.
KVSIM_HD inline RandomWords philox4x32(RandomWords counter, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ull * counter.word[0];
    const std::uint64_t b = 0xCD9E8D57ull * counter.word[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter.word[1] ^ key0,
                static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter.word[3] ^ key1,
                static_cast<std::uint32_t>(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// What a stream of random words is for: streams of different purposes are independent.
enum class Purpose : std::uint32_t {
  kSampleOffset = 1,  // thresholds inside a head's distribution
  kBudgetOffset = 2,  // systematic sampling of tile budgets
  kSynthetic = 3,     // trace synthesis
  kQueryDraw = 4,     // which query features Bernoulli scores use
  kTeamNoise = 5,     // which teams a head draws
  kMemberDraw = 6,    // which keys of a team it draws
  kClusters = 7,      // points that k-means begins with and learns from
};

/// The place a random word belongs to (docs/design.md): the seed is the key, all else the counter.
struct RandomStream {
  std::uint64_t seed = 0;
  Purpose purpose = Purpose::kSampleOffset;
  std::uint32_t layer = 0;  // < 4096
  std::uint32_t step = 0;
  std::uint32_t sequence = 0;  // < 2^20
  std::uint32_t head = 0;      // < 65536, query head of the model

  KVSIM_HD RandomWords block(std::uint32_t index) const {
    return philox4x32({{index, (static_cast<std::uint32_t>(purpose) << 16) | head, step,
                        (layer << 20) | sequence}},
                      seed);
  }
  KVSIM_HD std::uint32_t word(std::uint32_t index) const {
    return block(index / 4).word[index % 4];
  }
  /// A threshold in units of 2^-24, never 1.
  KVSIM_HD std::uint32_t threshold24(std::uint32_t index) const { return word(index) >> 8; }
};

}  // namespace kvsim
