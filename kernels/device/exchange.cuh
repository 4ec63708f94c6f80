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
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(target), "l"(tag | a),
               "l"(tag | b)
               : "memory");
}

__device__ inline TaggedPair peek(const TaggedPair* source) {
  std::uint64_t a;
  std::uint64_t b;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(a), "=l"(b)
               : "l"(source)
               : "memory");
  return {{static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32)},
          {static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32)}};
}

/// Numbers the launches over one workspace: every CTA of every launch (of `ctas` each) leaves once,
/// after it has read the number, so the number cannot change under a launch that reads it.
struct LaunchCounter {
  unsigned long long* left = nullptr;

  /// Starts the load; `number` of it is computed when it is needed, so that nobody waits here.
  __device__ unsigned long long read() const {
    return *const_cast<const volatile unsigned long long*>(left);
  }
  __device__ static std::uint32_t number(unsigned long long read, std::uint32_t ctas) {
    return 1 + static_cast<std::uint32_t>(read / ctas);
  }
  /// By one thread of the CTA, when all its threads have used the number.
  __device__ void leave() const { atomicAdd(left, 1ull); }
};

/// 2^(a - b), zero if a is -infinity (nothing was seen).
__device__ inline float rescale(float a, float b) {
  return a == -INFINITY ? 0.0f : fast_exp2(a - b);
}

/// A sum of weighted values and its softmax state: value and sum are in units of 2^highest.
struct Weighted {
  float value = 0;
  float sum = 0;
  float highest = -INFINITY;

  __device__ void add(const Weighted& other) {
    const float now = fmaxf(fmaxf(highest, other.highest), -FLT_MAX);  // never -inf - -inf
    const float mine = fast_exp2(highest - now);
    const float theirs = fast_exp2(other.highest - now);
    value = mine * value + theirs * other.value;
    sum = mine * sum + theirs * other.sum;
    highest = now;
  }
};

/// Partial results of the CTAs that share a team: two slots per CTA, for the first and the last
/// team of its share (a team in between is the CTA's alone).
struct Partials {
  TaggedPair* values = nullptr;   // [2 * ctas, group * D / 2]
  TaggedPair* weights = nullptr;  // [2 * ctas, group]: sum and highest; null: plain sums
  LaunchCounter launches;         // one per workspace
};

/// How a team is shared, as one of its CTAs sees it. Not inlined: code that runs once is fetched
/// once, and instruction fetches are what a short kernel waits for.
struct Sharing {
  int members;     // CTAs that work on the team
  int first;       // the first of them
  int slot;        // of the asking CTA's partial result
  int first_slot;  // of the first CTA's; those of the others are 2 * cta
};

__device__ inline int slot_of(const TeamSplit& split, const TeamSplit::Team& team, int cta) {
  const bool first = split.ctas_per_team > 0 || split.share_begin(cta) >= team.begin;
  return 2 * cta + (first ? 0 : 1);
}

__device__ __noinline__ inline Sharing sharing_of(const TeamSplit& split, TeamSplit::Team team,
                                                  int cta) {
  const TeamSplit::Members members = split.members(team);
  return {members.count, members.first, slot_of(split, team, cta),
          slot_of(split, team, members.first)};
}

/// Each CTA of a team adds up its slice of the team's group * D columns over all members.
template <int D, int kWarps, bool kWeighted>
class TeamSum {
 public:
  /// `scratch`: [kWarps, 32].
  __device__ TeamSum(const Partials& partials, int group, Weighted* scratch, std::uint32_t launch)
      : partials_(partials), group_(group), scratch_(scratch), launch_(launch) {}

  /// Called by all threads of the CTA; calls write(head, column, Weighted) once per column of the
  /// CTA's slice.
  template <typename Write>
  __device__ void run(const Sharing& sharing, int cta, const Write& write) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int columns = group_ * D;
    const int slice = (columns + sharing.members - 1) / sharing.members;
    const int begin = (cta - sharing.first) * slice;
    const int end = min(begin + slice, columns);
    int ways_log2 = kWarpsLog2;  // warps that share a column, each with its own members
    while ((1 << ways_log2) > sharing.members) --ways_log2;
    const int way = warp & ((1 << ways_log2) - 1);
    const int chunk = kWarp << (kWarpsLog2 - ways_log2);
#pragma unroll 1
    for (int base = begin; base < end; base += chunk) {
      const int column = base + (warp >> ways_log2) * kWarp + lane;
      Weighted sum;
      if (column < end) sum = add_members(sharing, column, way, 1 << ways_log2);
      __syncthreads();
      scratch_[threadIdx.x] = sum;
      __syncthreads();
      if (way != 0 || column >= end) continue;
#pragma unroll 1
      for (int other = 1; other < 1 << ways_log2; ++other) {
        add(sum, scratch_[threadIdx.x + static_cast<unsigned>(other * kWarp)]);
      }
      write(column / D, column % D, sum);
    }
  }

 private:
  static constexpr int kWarpsLog2 = kWarps == 8 ? 3 : (kWarps == 4 ? 2 : 1);
  static_assert(1 << kWarpsLog2 == kWarps);

  __device__ static void add(Weighted& sum, const Weighted& other) {
    if constexpr (kWeighted) {
      sum.add(other);
    } else {
      sum.value += other.value;
    }
  }

  /// Members first, first + ways, … of one column; the loads of several are under way at once.
  __device__ Weighted add_members(const Sharing& sharing, int column, int first, int ways) const {
    constexpr int kAtOnce = 4;
    Weighted sum;
#pragma unroll 1
    for (int base = first; base < sharing.members; base += kAtOnce * ways) {
      TaggedPair value[kAtOnce];
      TaggedPair weight[kAtOnce];
      bool complete = false;
      while (!complete) {
        complete = true;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int member = min(base + j * ways, sharing.members - 1);
          const int slot = member == 0 ? sharing.first_slot : 2 * (sharing.first + member);
          value[j] = peek(partials_.values + slot * (group_ * D / 2) + column / 2);
          if (kWeighted) weight[j] = peek(partials_.weights + slot * group_ + column / D);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          complete = complete && is_current(value[j]) && (!kWeighted || is_current(weight[j]));
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (base + j * ways >= sharing.members) continue;
        const float v = __uint_as_float(column % 2 == 0 ? value[j].a.word : value[j].b.word);
        if constexpr (kWeighted) {
          add(sum, {v, __uint_as_float(weight[j].a.word), __uint_as_float(weight[j].b.word)});
        } else {
          add(sum, {v, 0, 0});
        }
      }
    }
    return sum;
  }

  __device__ bool is_current(const TaggedPair& pair) const {
    return pair.a.launch == launch_ && pair.b.launch == launch_;
  }

  const Partials& partials_;
  int group_;
  Weighted* scratch_;
  std::uint32_t launch_;
};

}  // namespace kvsim::device
