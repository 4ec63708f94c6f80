#pragma once

#include <cstdint>

#include "kernels/santapp/threshold.cuh"

// The threshold of a head whose lists were too short: a radix select over the priorities of all its
// teams, the team's number behind them, four bits a round. Seldom needed, so it is short rather
// than fast.

namespace kvsim::santapp {

inline constexpr int kDigitBits = 4;
inline constexpr int kBins = 1 << kDigitBits;
inline constexpr int kTeamBits = 20;  // of a team's number
inline constexpr int kDigitRounds = (32 + kTeamBits) / kDigitBits;

template <typename Shape>
class DigitSearch {
 public:
  __device__ DigitSearch(const TeamCta& cta, char* shared, std::uint32_t launch)
      : cta_(cta),
        a_(cta.a),
        thresholds_(reinterpret_cast<HeadThreshold*>(shared + Shape::kThresholds)),
        bins_(reinterpret_cast<std::uint32_t*>(shared + Shape::kBinned)),
        known_(reinterpret_cast<Known*>(shared)),
        launch_(launch) {}

  /// By all threads, after ThresholdSearch: nothing where no head is open.
  __device__ void run() const {
    const int thread = static_cast<int>(threadIdx.x);
    const bool open = thread < a_.group && thresholds_[thread].open != 0;
    if (!device::any_of_workers<Shape::kThreads>(open)) return;
    if (thread < a_.group) known_[thread] = {0, static_cast<std::uint32_t>(a_.draws + 1), 0};
#pragma unroll 1
    for (int round = 0; round < kDigitRounds; ++round) {
      for (int i = thread; i < a_.group * kBins; i += Shape::kThreads) bins_[i] = 0;
      device::sync_workers<Shape::kThreads>();
      for_each_key([&](int, int, int head, std::uint64_t key) { count(round, head, key); });
      device::sync_workers<Shape::kThreads>();
      add_up(round);
      device::sync_workers<Shape::kThreads>();
      if (open) find_digit(thread);
      device::sync_workers<Shape::kThreads>();
    }
    if (open) {
      const std::uint64_t found = known_[thread].digits;
      thresholds_[thread].key = static_cast<std::uint32_t>(found >> kTeamBits);
      thresholds_[thread].team = team_of(found);
    }
    device::sync_workers<Shape::kThreads>();
    for_each_key([&](int own, int index, int head, std::uint64_t key) {
      const HeadThreshold& t = thresholds_[head];
      const auto priority = static_cast<std::uint32_t>(key >> kTeamBits);
      if (!is_above(priority, team_of(key), t)) return;
      mark_drawn(cta_, own, index, head, device::value_of(t.key));
    });
    device::sync_workers<Shape::kThreads>();
  }

 private:
  /// Of a head's threshold: its first digits, and which of the keys that begin so it is, from 1.
  struct alignas(16) Known {
    std::uint64_t digits;
    std::uint32_t place;
    std::uint32_t padding;
  };
  static constexpr std::uint32_t kTeamMask = (1u << kTeamBits) - 1;

  /// Priority, then the lower team first.
  __device__ static std::uint64_t key_with_team(std::uint32_t key, int team) {
    return std::uint64_t{key} << kTeamBits | (kTeamMask - static_cast<std::uint32_t>(team));
  }
  __device__ static std::int32_t team_of(std::uint64_t key) {
    return static_cast<std::int32_t>(kTeamMask - (static_cast<std::uint32_t>(key) & kTeamMask));
  }

  /// Calls visit(own tile, team's number in it, head, key) for all own teams of open heads.
  template <typename Visit>
  __device__ void for_each_key(const Visit& visit) const {
#pragma unroll 1
    for (int item = cta_.warp; item < a_.tiles_per_cta * a_.group; item += Shape::kWarps) {
      const int own = item / a_.group;
      const int head = item - own * a_.group;
      if (thresholds_[head].open == 0) continue;
      const int number = cta_.tile_number(own);
      float noise[kLaneTeams];
      std::uint32_t key[kLaneTeams];
      const int first = cta_.lane * kLaneTeams;
      make_noise(noise, a_.step, a_.group, cta_.team, head, cta_.team_of(number, first));
      make_keys(key, cta_.tile(own).weights(head) + first, noise);
#pragma unroll 1
      for (int i = 0; i < kLaneTeams; ++i) {
        const int index = first + i;
        visit(own, index, head, key_with_team(key[i], cta_.team_of(number, index)));
      }
    }
  }

  __device__ void count(int round, int head, std::uint64_t key) const {
    const int shift = kDigitBits * (kDigitRounds - 1 - round);
    if (key >> (shift + kDigitBits) != known_[head].digits) return;
    atomicAdd(bins_ + head * kBins + static_cast<int>(key >> shift & (kBins - 1)), 1u);
  }

  /// Counts of all CTAs in place of the own ones. Two rounds' counts lie apart: who publishes the
  /// next has read all of this one's, but not all have.
  __device__ void add_up(int round) const {
    constexpr int kPairs = kBins / 2;
    const int thread = static_cast<int>(threadIdx.x);
    const int head = thread / kPairs;
    const int pair = thread % kPairs;
    const bool counts = head < a_.group && thresholds_[head].open != 0;
    const std::uint32_t tag = launch_ * 16 + static_cast<std::uint32_t>(round);
    const auto place = [&](int cta) {
      const std::int64_t slot = std::int64_t{round % 2} * a_.split.ctas + cta;
      return a_.counts + (slot * a_.group + head) * kPairs + pair;
    };
    std::uint32_t* bins = bins_ + head * kBins + 2 * pair;
    if (counts) device::publish(place(device::this_cta()), bins[0], bins[1], tag);
    device::sync_workers<Shape::kThreads>();
    if (!counts) return;
    std::uint32_t a = 0;
    std::uint32_t b = 0;
#pragma unroll 1
    for (int member = 0; member < cta_.ctas; ++member) {
      const device::TaggedPair got =
          device::await(place(device::this_cta() - cta_.rank + member), tag);
      a += got.a.word;
      b += got.b.word;
    }
    bins[0] = a;
    bins[1] = b;
  }

  /// By one thread of each head.
  __device__ void find_digit(int head) const {
    Known& known = known_[head];
    const std::uint32_t* bins = bins_ + head * kBins;
    int digit = kBins - 1;
    while (digit > 0 && bins[digit] < known.place) known.place -= bins[digit--];
    known.digits = known.digits << kDigitBits | static_cast<std::uint64_t>(digit);
  }

  TeamCta cta_;
  const SantappArguments& a_;
  HeadThreshold* thresholds_;  // [group]
  std::uint32_t* bins_;        // [group, kBins]
  Known* known_;               // [group], where the candidates were
  std::uint32_t launch_;
};

}  // namespace kvsim::santapp
