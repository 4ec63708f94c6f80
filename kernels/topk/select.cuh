#pragma once

#include <cstdint>

#include "kernels/device/ordered_key.cuh"
#include "kernels/device/stream.cuh"
#include "kernels/topk/radix.h"

// Finds each head's k-th largest score: a radix select over the team, 8 bits a round. Every CTA
// counts digits of its own scores; one CTA per head adds the team's counts up and tells the others
// which digit it is. All teams of a CTA's share go through a round together, so that no team waits
// for the whole selection of another.

namespace kvsim::device {

inline constexpr int kHistogramRow = kBins + 8;  // words, so that copies lie in other banks
inline constexpr int kQueueRows = 2 * kBlockTokens;

/// A record says how many of a block's scores are the k-th largest.
struct TopkArguments : StreamArguments {
  TaggedPair* histograms = nullptr;  // [kRounds, 2 * ctas, group, kBins / 2]
  TaggedPair* results = nullptr;     // [kRounds, teams, group]: key and taken of HeadSelect
  std::uint32_t keys = 128;
  std::int32_t most_teams = 1;  // of a CTA
  std::int32_t parts_log2 = 0;  // log2 of the warps that share a head's rows
};

inline constexpr int kLaneKeys = kBlockTokens / kWarp;

/// This lane's keys of a block.
__device__ inline void load_keys(std::uint32_t (&word)[kLaneKeys], const std::uint32_t* keys) {
  const auto* source =
      reinterpret_cast<const uint4*>(keys + static_cast<int>(threadIdx.x) % kWarp * kLaneKeys);
  static_assert(kLaneKeys == 8);
  const uint4 low = source[0];
  const uint4 high = source[1];
  word[0] = low.x, word[1] = low.y, word[2] = low.z, word[3] = low.w;
  word[4] = high.x, word[5] = high.y, word[6] = high.z, word[7] = high.w;
}

/// What becomes of a block's scores of one head: keys.
struct ScoreKeys {
  template <typename Blocks>
  __device__ static void make(const StreamArguments&, const std::uint32_t* scores,
                              std::uint32_t* keys, const Blocks&, int, int, std::uint32_t) {
    std::uint32_t word[kLaneKeys];
    load_keys(word, scores);
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) word[i] = key_of(__uint_as_float(word[i]));
    auto* target =
        reinterpret_cast<uint4*>(keys + static_cast<int>(threadIdx.x) % kWarp * kLaneKeys);
    target[0] = {word[0], word[1], word[2], word[3]};
    target[1] = {word[4], word[5], word[6], word[7]};
  }
};

/// Which keys of a head are selected: those above `key`, and the first `taken` that equal it. While
/// digits are missing, `taken` counts among the keys that begin like `key`.
struct HeadSelect {
  static constexpr std::uint32_t kAll = 0x80000000u;  // flag of `taken`: those are all there are

  std::uint32_t key;
  std::uint32_t taken;
  std::uint32_t highest;  // key of this CTA

  __device__ bool is_closed() const { return (taken & kAll) != 0; }
};

/// How the ring, empty by then, is used after streaming; for host (sizes) and device.
struct TopkLayout {
  int sum;  // bytes before each array
  int teams;
  int heads;
  int histograms;  // sums, queues and weights take their place
  int sums;
  int queues;
  int weights;
  int bytes;

  /// Copies of a histogram, for lanes that meet in a bin.
  KVSIM_HD static constexpr int copies(int warps) { return warps / 2; }

  KVSIM_HD static TopkLayout of(const TopkArguments& a, int warps, int row) {
    const int items = a.group > warps ? a.group : warps;
    TopkLayout layout{};
    layout.sum = 0;
    layout.teams = layout.sum + warps * kWarp * static_cast<int>(sizeof(WeightedPair));
    layout.heads = layout.teams + a.most_teams * static_cast<int>(sizeof(TeamPart));
    layout.histograms =
        (layout.heads + a.most_teams * a.group * static_cast<int>(sizeof(HeadSelect)) + 15) / 16 *
        16;
    layout.sums = layout.histograms;
    layout.queues = layout.sums + items * row * 4;
    layout.weights = layout.queues + warps * kQueueRows * 8;
    const int gathered = layout.weights + items * 4;
    const int counted = layout.histograms + a.group * copies(warps) * kHistogramRow * 4;
    layout.bytes = gathered > counted ? gathered : counted;
    return layout;
  }
};

template <int kWarps>
class TopkSelect {
 public:
  __device__ TopkSelect(const TopkArguments& arguments, const StreamShared& shared,
                        const TeamPart* teams, int count, HeadSelect* heads,
                        std::uint32_t* histograms, std::uint32_t launch)
      : a_(arguments),
        shared_(shared),
        teams_(teams),
        count_(count),
        heads_(heads),
        histograms_(histograms),
        launch_(launch),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  /// By all workers of the CTA. Where equal keys are not all taken, the ties of every block are
  /// published afterwards.
  __device__ void run() {
#pragma unroll 1
    for (int round = 0; round < kRounds && is_open(); ++round) {
#pragma unroll 1
      for (int n = 0; n < count_; ++n) count_team(n, round);
#pragma unroll 1
      for (int n = 0; n < count_; ++n) add_up_team(n, round);
      sync_workers<kThreads>();  // other warps may still read what this one receives
#pragma unroll 1
      for (int n = 0; n < count_; ++n) receive(n, round);
    }
    if (!is_open()) return;
#pragma unroll 1
    for (int n = 0; n < count_; ++n) publish_ties(n);
  }

  /// Keys of own block b of a team.
  __device__ static const std::uint32_t* keys_of(const StreamArguments& a,
                                                 const StreamShared& shared, const TeamPart& team,
                                                 int b, int head) {
    const int block = team.own.team.begin + team.own.first + b * team.own.step;
    return finished_of(a, shared, team.index + b, block) + head * kStashRow;
  }

 private:
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kCopies = TopkLayout::copies(kWarps);

  __device__ HeadSelect& head_of(int n, int head) const { return heads_[n * a_.group + head]; }
  __device__ std::uint32_t* histogram_of(int head) const {
    return histograms_ + head * kCopies * kHistogramRow;
  }
  __device__ TaggedPair* shared_histogram(int round, int slot, int head) const {
    const int slots = 2 * a_.split.ctas;
    return a_.histograms + (std::int64_t{round * slots + slot} * a_.group + head) * (kBins / 2);
  }
  __device__ TaggedPair* result_of(int n, int round, int head) const {
    const TeamSplit::Team& team = teams_[n].own.team;
    const int teams = a_.split.teams();
    return a_.results +
           (round * teams + team.sequence * a_.step.kv_heads + team.kv_head) * a_.group + head;
  }

  /// Whether the selection of a head is not complete.
  __device__ bool is_open() const {
    sync_workers<kThreads>();
    int open = 0;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count_ * a_.group; i += kThreads) {
      open |= heads_[i].is_closed() ? 0 : 1;
    }
    return any_of_workers<kThreads>(open != 0);
  }

  __device__ void count_team(int n, int round) {
    sync_workers<kThreads>();  // the histograms may still be read
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < a_.group * kCopies * kHistogramRow;
         i += kThreads) {
      histograms_[i] = 0;
    }
    sync_workers<kThreads>();
#pragma unroll 1
    for (int item = warp_; item < a_.group << a_.parts_log2; item += kWarps) {
      count_head(n, round, item >> a_.parts_log2, item & ((1 << a_.parts_log2) - 1));
    }
    sync_workers<kThreads>();
    const bool alone = teams_[n].sharing.members == 1;
#pragma unroll 1
    for (int head = warp_; head < a_.group; head += kWarps) {
      if (head_of(n, head).is_closed()) continue;
      if (alone) {
        find_digit(n, round, head, kCopies);
      } else {
        publish_histogram(n, round, head);
      }
    }
  }

  /// Counts the next digits of keys that begin like the head's; a part of its own blocks.
  __device__ void count_head(int n, int round, int head, int part) {
    HeadSelect& select = head_of(n, head);
    if (select.is_closed()) return;
    const int shift = 32 - kDigitBits * (round + 1);
    const std::uint32_t known = round == 0 ? 0u : ~0u << (shift + kDigitBits);
    const std::uint32_t key = select.key;
    std::uint32_t* bins = histogram_of(head) + lane_ % kCopies * kHistogramRow;
    std::uint32_t highest = 0;
#pragma unroll 1
    for (int b = part; b < teams_[n].own.count; b += 1 << a_.parts_log2) {
      std::uint32_t word[kLaneKeys];
      load_keys(word, keys_of(a_, shared_, teams_[n], b, head));
#pragma unroll
      for (int i = 0; i < kLaneKeys; ++i) {
        if ((word[i] & known) == key) atomicAdd(bins + (word[i] >> shift & (kBins - 1)), 1u);
        highest = max(highest, word[i]);
      }
    }
    if (round > 0) return;
    highest = __reduce_max_sync(0xffffffffu, highest);
    if (lane_ == 0) atomicMax(&select.highest, highest);
  }

  /// By one warp.
  __device__ void publish_histogram(int n, int round, int head) {
    TaggedPair* target = shared_histogram(round, teams_[n].sharing.slot, head);
    const std::uint32_t* bins = histogram_of(head);
#pragma unroll 1
    for (int pair = lane_; pair < kBins / 2; pair += kWarp) {
      std::uint32_t a = 0;
      std::uint32_t b = 0;
#pragma unroll
      for (int copy = 0; copy < kCopies; ++copy) {
        a += bins[copy * kHistogramRow + 2 * pair];
        b += bins[copy * kHistogramRow + 2 * pair + 1];
      }
      publish(target + pair, a, b, launch_);
    }
  }

  /// The heads of a team are dealt out over its CTAs; each adds up the histograms of its heads.
  __device__ void add_up_team(int n, int round) {
    const Sharing sharing = teams_[n].sharing;
    if (sharing.members == 1) return;
#pragma unroll 1
    for (int head = this_cta() - sharing.first; head < a_.group; head += sharing.members) {
      if (head_of(n, head).is_closed()) continue;
      sync_workers<kThreads>();
      add_members(sharing, round, head);
      sync_workers<kThreads>();
      if (warp_ == 0) find_digit(n, round, head, kThreads / (kBins / 2));
    }
  }

  /// Two bins per thread; threads that share bins add up members of their own.
  __device__ void add_members(const Sharing& sharing, int round, int head) {
    constexpr int kAtOnce = 8;
    constexpr int kParts = kThreads / (kBins / 2);
    static_assert(kParts >= 1 && kParts <= kCopies);
    const int pair = static_cast<int>(threadIdx.x) % (kBins / 2);
    const int part = static_cast<int>(threadIdx.x) / (kBins / 2);
    std::uint32_t a = 0;
    std::uint32_t b = 0;
#pragma unroll 1
    for (int base = part; base < sharing.members; base += kAtOnce * kParts) {
      TaggedPair got[kAtOnce];
      bool complete = false;
      while (!complete) {
        complete = true;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int member = min(base + j * kParts, sharing.members - 1);
          const int slot = member == 0 ? sharing.first_slot : 2 * (sharing.first + member);
          got[j] = peek(shared_histogram(round, slot, head) + pair);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) complete = complete && is_of(got[j], launch_);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (base + j * kParts >= sharing.members) continue;
        a += got[j].a.word;
        b += got[j].b.word;
      }
    }
    std::uint32_t* bins = histogram_of(head) + part * kHistogramRow + 2 * pair;
    bins[0] = a;
    bins[1] = b;
  }

  /// By one warp: the digit at which the counts, from the top, reach what is to be taken.
  __device__ void find_digit(int n, int round, int head, int copies) {
    constexpr int kLaneBins = kBins / kWarp;
    const int first = kBins - kLaneBins * (lane_ + 1);  // earlier lanes hold higher digits
    const std::uint32_t* bins = histogram_of(head) + first;
    std::uint32_t count[kLaneBins] = {};
    std::uint32_t sum = 0;
#pragma unroll 1
    for (int copy = 0; copy < copies; ++copy) {
#pragma unroll
      for (int i = 0; i < kLaneBins; ++i) {
        count[i] += bins[copy * kHistogramRow + i];
        sum += bins[copy * kHistogramRow + i];
      }
    }
    HeadSelect& select = head_of(n, head);
    const std::uint32_t taken = select.taken;
    std::uint32_t above = lanes_before(sum, lane_);
    __syncwarp();                                       // all have read what one writes
    if (above >= taken || above + sum < taken) return;  // true for all lanes but one
    const int shift = 32 - kDigitBits * (round + 1);
#pragma unroll
    for (int i = kLaneBins - 1; i >= 0; --i) {
      if (above < taken && above + count[i] >= taken) {
        select.key |= static_cast<std::uint32_t>(first + i) << shift;
        select.taken = taken - above;
        if (select.taken == count[i]) select.taken |= HeadSelect::kAll;
      }
      above += count[i];
    }
    if (teams_[n].sharing.members == 1) return;
    publish(result_of(n, round, head), select.key, select.taken, launch_);
  }

  __device__ void receive(int n, int round) {
    const int head = static_cast<int>(threadIdx.x);
    if (teams_[n].sharing.members == 1 || head >= a_.group) return;
    HeadSelect& select = head_of(n, head);
    if (select.is_closed()) return;
    const TaggedPair result = await(result_of(n, round, head), launch_);
    select.key = result.a.word;
    select.taken = result.b.word;
  }

  /// How many of each own block's keys equal the k-th largest, for heads that take some of them.
  __device__ void publish_ties(int n) {
    const OwnBlocks& own = teams_[n].own;
#pragma unroll 1
    for (int item = warp_; item < a_.group << a_.parts_log2; item += kWarps) {
      const int head = item >> a_.parts_log2;
      const HeadSelect select = head_of(n, head);
      if (select.is_closed()) continue;
#pragma unroll 1
      for (int b = item & ((1 << a_.parts_log2) - 1); b < own.count; b += 1 << a_.parts_log2) {
        std::uint32_t word[kLaneKeys];
        load_keys(word, keys_of(a_, shared_, teams_[n], b, head));
        std::uint32_t ties = 0;
#pragma unroll
        for (int i = 0; i < kLaneKeys; ++i) ties += word[i] == select.key ? 1u : 0u;
        ties = __reduce_add_sync(0xffffffffu, ties);
        TaggedPair* record = records_of(a_, own.team, head) + own.first + b * own.step;
        if (lane_ == 0) publish(record, ties, 0, launch_);
      }
    }
  }

  const TopkArguments& a_;
  const StreamShared& shared_;
  const TeamPart* teams_;
  int count_;
  HeadSelect* heads_;          // [teams, group]
  std::uint32_t* histograms_;  // [group, copies, kHistogramRow]
  std::uint32_t launch_;
  int warp_;
  int lane_;
};

}  // namespace kvsim::device
