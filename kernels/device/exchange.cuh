#pragma once

#include <cfloat>
#include <cstdint>

#include "kernels/device/step.h"
#include "kernels/device/team_split.h"
#include "kernels/device/units.cuh"

// What the CTAs of a team tell each other. Every word travels with the number of its launch, so
// data is its own barrier: readers poll until the number is there. That costs one trip through L2,
// where a fence, a counter and a read cost three. All CTAs must run at once (cooperative launch).
// Sums run in a fixed order: no float atomics, so equal launches give equal bytes.

namespace kvsim::device {

/// 32 bits and the launch they belong to.
struct Tagged {
  std::uint32_t word = 0;
  std::uint32_t launch = 0;
};
struct alignas(16) TaggedPair {
  Tagged a;
  Tagged b;
};

__device__ inline void publish(TaggedPair* target, std::uint32_t a, std::uint32_t b,
                               std::uint32_t launch) {
  const std::uint64_t tag = std::uint64_t{launch} << 32;
  store_relaxed(target, tag | a, tag | b);
}

/// One word alone; what tells its launch is up to the caller.
__device__ inline void publish(Tagged* target, std::uint32_t word, std::uint32_t tag) {
  store_relaxed(target, std::uint64_t{tag} << 32 | word);
}

__device__ inline TaggedPair peek(const TaggedPair* source) {
  std::uint64_t a;
  std::uint64_t b;
  load_relaxed(source, a, b);
  return {{static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32)},
          {static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32)}};
}

__device__ inline bool is_of(const TaggedPair& pair, std::uint32_t launch) {
  return pair.a.launch == launch && pair.b.launch == launch;
}

/// Waits until the pair is of this launch.
__device__ inline TaggedPair await(const TaggedPair* source, std::uint32_t launch) {
  TaggedPair pair;
  do {
    pair = peek(source);
  } while (!is_of(pair, launch));
  return pair;
}

/// Numbers the launches over one workspace: the CTAs of a launch, each of which leaves once, add
/// 1024 in all, so the number cannot change under a launch that reads it.
struct LaunchCounter {
  static constexpr int kAddedLog2 = 10;  // more than there are CTAs

  unsigned long long* left = nullptr;

  /// Starts the load; `number` of it is computed when it is needed, so that nobody waits here.
  __device__ unsigned long long read() const {
    return *const_cast<const volatile unsigned long long*>(left);
  }
  __device__ static std::uint32_t number(unsigned long long read) {
    return 1 + static_cast<std::uint32_t>(read >> kAddedLog2);
  }
  /// By one thread of the CTA, when all its threads have used the number.
  __device__ void leave(int ctas) const {
    const int others = ctas - 1;
    atomicAdd(left,
              static_cast<unsigned long long>(this_cta() == 0 ? (1 << kAddedLog2) - others : 1));
  }
};

inline constexpr float kLog2e = 1.44269504f;

/// 2^(a - b), zero if a is -infinity (nothing was seen).
__device__ inline float rescale(float a, float b) {
  return a == -INFINITY ? 0.0f : fast_exp2(a - b);
}

/// Sums of weighted values of two neighbouring columns and their softmax state: all but `highest`
/// are in units of 2^highest.
struct alignas(16) WeightedPair {
  float a = 0;
  float b = 0;
  float sum = 0;
  float highest = -INFINITY;

  __device__ void rescale_to(float reference) {
    const float now = fmaxf(reference, -FLT_MAX);  // never -inf - -inf
    const float factor = fast_exp2(highest - now);
    a *= factor;
    b *= factor;
    sum *= factor;
    highest = now;
  }
  __device__ void add(WeightedPair other) {
    const float now = fmaxf(highest, other.highest);
    rescale_to(now);
    other.rescale_to(now);
    a += other.a;
    b += other.b;
    sum += other.sum;
  }
};

/// Partial results of the CTAs that share a team: two slots per CTA, for the first and the last
/// team of its share (a team in between is the CTA's alone).
struct Partials {
  TaggedPair* values = nullptr;   // [2 * ctas, group * D / 2]
  TaggedPair* weights = nullptr;  // [2 * ctas, group]: sum and highest; null: plain sums
  LaunchCounter launches;         // one per workspace
  std::int32_t pairs = 0;         // group * D / 2
  std::int32_t slice = 0;         // of a CTA, where teams have CTAs of their own
};

/// How a team is shared, as one of its CTAs sees it.
struct Sharing {
  int members;     // CTAs that work on the team
  int slice;       // pairs of columns that each adds up
  int first;       // the first of them
  int slot;        // of the asking CTA's partial result
  int first_slot;  // of the first CTA's; those of the others are 2 * cta
};

template <bool kTeams>
__device__ inline Sharing sharing_of(const TeamSplit& split, const Partials& partials,
                                     const TeamSplit::Team& team) {
  const int cta = this_cta();
  if constexpr (kTeams) {
    const int first = cta - static_cast<int>(blockIdx.x);
    return {static_cast<int>(gridDim.x), partials.slice, first, 2 * cta, 2 * first};
  } else {
    const int first = split.cta_of(team.begin);
    const int members = split.cta_of(team.end - 1) - first + 1;
    return {members, (partials.pairs + members - 1) / members, first,
            2 * cta + (split.share_begin(cta) >= team.begin ? 0 : 1),
            2 * first + (split.share_begin(first) >= team.begin ? 0 : 1)};
  }
}

/// The first query head of a team in the whole batch.
__device__ inline std::int64_t first_head(const DeviceStep& step, int group,
                                          const TeamSplit::Team& team) {
  return std::int64_t{team.sequence} * step.q_heads + team.kv_head * group;
}

/// Writes two columns of a head's output: weighted sums over their weights, a sink's included.
__device__ inline void write_weighted(const DeviceStep& step, int group,
                                      const TeamSplit::Team& team, int head, int column,
                                      WeightedPair total) {
  if (column >= step.head_dim) return;
  const std::int64_t row = first_head(step, group, team) + head;
  if (step.sink_logits != nullptr) {
    total.add({0, 0, 1, step.sink_logits[team.kv_head * group + head] * kLog2e});
  }
  const float inverse = total.sum > 0 ? 1 / total.sum : 0;  // 0: a head that attends to nothing
  store_output(step, row * step.head_dim + column, total.a * inverse, total.b * inverse);
}

/// Each CTA of a team adds up its slice of the team's group * D columns over all members. Threads
/// take two columns each; those that share columns take members of their own.
template <int D, int kThreads, bool kWeighted>
class TeamSum {
 public:
  /// `scratch`: [kThreads].
  __device__ TeamSum(const Partials& partials, int group, WeightedPair* scratch,
                     std::uint32_t launch)
      : partials_(partials), group_(group), scratch_(scratch), launch_(launch) {}

  /// Called by the CTA's first kThreads threads; calls write(head, column, WeightedPair) once for
  /// every two columns of the CTA's slice.
  template <typename Write>
  __device__ void run(const Sharing& sharing, const Write& write) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int begin = (this_cta() - sharing.first) * sharing.slice;
    const int end = min(begin + sharing.slice, partials_.pairs);
    const int width_log2 = min(32 - __clz(sharing.slice - 1), kThreadsLog2);  // threads over pairs
#pragma unroll 1
    for (int base = begin; base < end; base += 1 << width_log2) {
      const int pair = base + (thread & ((1 << width_log2) - 1));
      WeightedPair total;
#pragma unroll 1
      for (int member = thread >> width_log2; member < sharing.members && pair < end;
           member += kThreads >> width_log2) {
        add(total, partial_of(sharing, member, pair));
      }
      if (!add_ways(total, width_log2) || pair >= end) continue;
      write(pair / (D / 2), pair % (D / 2) * 2, total);
    }
  }

 private:
  static constexpr int kThreadsLog2 =
      kThreads == 512 ? 9 : (kThreads == 256 ? 8 : (kThreads == 128 ? 7 : 6));
  static_assert(1 << kThreadsLog2 == kThreads);

  __device__ static void add(WeightedPair& total, const WeightedPair& other) {
    if constexpr (kWeighted) {
      total.add(other);
    } else {
      total.a += other.a;
      total.b += other.b;
    }
  }

  /// Adds up the threads that share a pair; true for the one that has the total.
  __device__ bool add_ways(WeightedPair& total, int width_log2) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int distance = kWarp / 2; distance >> width_log2 != 0; distance /= 2) {
      WeightedPair other;
      other.a = __shfl_xor_sync(0xffffffffu, total.a, distance);
      other.b = __shfl_xor_sync(0xffffffffu, total.b, distance);
      if (kWeighted) other.sum = __shfl_xor_sync(0xffffffffu, total.sum, distance);
      if (kWeighted) other.highest = __shfl_xor_sync(0xffffffffu, total.highest, distance);
      add(total, other);
    }
    sync_workers<kThreads>();
    scratch_[thread] = total;
    sync_workers<kThreads>();
    if (thread >> width_log2 != 0) return false;
    const int stride = max(1 << width_log2, kWarp);
    float highest = total.highest;
    if (kWeighted) {
#pragma unroll
      for (int i = 1; i < kThreads / kWarp; ++i) {
        const int other = thread + i * stride;
        if (other < kThreads) highest = fmaxf(highest, scratch_[other].highest);
      }
    }
    if (kWeighted) total.rescale_to(highest);
#pragma unroll
    for (int i = 1; i < kThreads / kWarp; ++i) {  // not total.add(): these are independent
      const int other = thread + i * stride;
      if (other >= kThreads) break;
      WeightedPair part = scratch_[other];
      if (kWeighted) part.rescale_to(highest);
      total.a += part.a;
      total.b += part.b;
      total.sum += part.sum;
    }
    return true;
  }

  /// Waits for a member's part of this launch.
  __device__ WeightedPair partial_of(const Sharing& sharing, int member, int pair) const {
    const int slot = member == 0 ? sharing.first_slot : 2 * (sharing.first + member);
    TaggedPair value;
    TaggedPair weight;
    do {
      value = peek(partials_.values + slot * (group_ * D / 2) + pair);
      if (kWeighted) weight = peek(partials_.weights + slot * group_ + pair / (D / 2));
    } while (!is_of(value, launch_) || (kWeighted && !is_of(weight, launch_)));
    const float a = __uint_as_float(value.a.word);
    const float b = __uint_as_float(value.b.word);
    if constexpr (kWeighted) {
      return {a, b, __uint_as_float(weight.a.word), __uint_as_float(weight.b.word)};
    } else {
      return {a, b, 0, 0};
    }
  }

  const Partials& partials_;
  int group_;
  WeightedPair* scratch_;
  std::uint32_t launch_;
};

}  // namespace kvsim::device
