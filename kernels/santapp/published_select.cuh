#pragma once

#include <cstdint>

#include "kernels/santapp/candidates.cuh"
#include "kernels/santapp/published.cuh"

// The second launch: the K + 1 largest priorities of each part of a head's teams.

namespace kvsim::santapp {

/// A part lies in the registers of `kPartWarpsValue` warps.
template <int kLaneKeysValue, int kPartWarpsValue>
struct SelectShape {
  static constexpr int kLaneKeys = kLaneKeysValue;
  static constexpr int kPartWarps = kPartWarpsValue;
  static constexpr int kPartThreads = kPartWarps * device::kWarp;
  static constexpr int kPart = kLaneKeys * kPartThreads;
  static constexpr int kParts = kPartWarps == 1 ? 2 : 1;  // of a CTA
  static constexpr int kThreads = kParts * kPartThreads;
  static constexpr int kSharedBytes = kPartWarps == 1 ? 0 : 8 * kPartWarps;
  static_assert(kLaneKeys <= 32 && kLaneKeys % 4 == 0);
};

/// Warps that look at one part, what they count together.
template <int kWarps>
class Crew {
 public:
  /// `slots`: [2, kWarps] words of shared memory, unless there is one warp.
  __device__ Crew(std::uint32_t* slots, int warp, int lane)
      : slots_(slots), warp_(warp), lane_(lane) {}

  __device__ std::uint32_t sum(std::uint32_t value) {
    return fold(__reduce_add_sync(0xffffffffu, value),
                [](std::uint32_t a, std::uint32_t b) { return a + b; });
  }
  __device__ std::uint32_t least(std::uint32_t value) {
    return fold(__reduce_min_sync(0xffffffffu, value),
                [](std::uint32_t a, std::uint32_t b) { return min(a, b); });
  }
  __device__ std::uint32_t most(std::uint32_t value) {
    return fold(__reduce_max_sync(0xffffffffu, value),
                [](std::uint32_t a, std::uint32_t b) { return max(a, b); });
  }
  /// Sum over earlier threads.
  __device__ std::uint32_t before(std::uint32_t value) {
    std::uint32_t result = device::lanes_before(value, lane_);
    if constexpr (kWarps > 1) {
      const std::uint32_t* slots = exchange(__reduce_add_sync(0xffffffffu, value));
      for (int w = 0; w < warp_; ++w) result += slots[w];
    }
    return result;
  }

 private:
  template <typename Fold>
  __device__ std::uint32_t fold(std::uint32_t value, const Fold& both) {
    if constexpr (kWarps > 1) {
      const std::uint32_t* slots = exchange(value);
      value = slots[0];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) value = both(value, slots[w]);
    }
    return value;
  }

  /// Slots take turns: who writes the next has read these, but not all have.
  __device__ const std::uint32_t* exchange(std::uint32_t value) {
    std::uint32_t* slots = slots_ + turn_ * kWarps;
    turn_ = 1 - turn_;
    if (lane_ == 0) slots[warp_] = value;
    device::sync_workers<kWarps * device::kWarp>();
    return slots;
  }

  std::uint32_t* slots_;
  int warp_;
  int lane_;
  int turn_ = 0;
};

template <typename Shape>
class PartSelect {
 public:
  static constexpr int kLaneKeys = Shape::kLaneKeys;

  __device__ PartSelect(const PublishedCta& cta, char* shared)
      : cta_(cta),
        a_(cta.a),
        thread_(static_cast<int>(threadIdx.x) % Shape::kPartThreads),
        crew_(reinterpret_cast<std::uint32_t*>(shared), cta.warp, cta.lane) {}

  /// By a part's warps. Parts of all heads are numbered part by part.
  __device__ void run(int item) {
    part_ = item / a_.group;
    head_row_ = cta_.number * a_.group + item - part_ * a_.group;
    load();
    unsigned own = 0;
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) own += key_[i] != 0 ? 1u : 0u;
    const auto existing = static_cast<int>(crew_.sum(own));
    if (existing <= a_.list) {
      write(mask_of([](std::uint32_t key) { return key != 0; }), existing);
    } else {
      write(largest(), a_.list);
    }
  }

 private:
  /// Key 4 j + i of a thread, so that threads in a row load 16 bytes each in a row.
  __device__ int team_of(int i) const {
    return part_ * Shape::kPart + 4 * (i / 4 * Shape::kPartThreads + thread_) + i % 4;
  }

  __device__ void load() {
    const std::uint32_t* keys = a_.keys + head_row_ * a_.stride;
#pragma unroll
    for (int i = 0; i < kLaneKeys; i += 4) {
      const int team = team_of(i);
      uint4 four{0, 0, 0, 0};
      if (team < a_.stride) four = *reinterpret_cast<const uint4*>(keys + team);
      key_[i] = four.x;
      key_[i + 1] = four.y;
      key_[i + 2] = four.z;
      key_[i + 3] = four.w;
    }
  }

  template <typename Holds>
  __device__ std::uint32_t mask_of(const Holds& holds) const {
    std::uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) mask |= holds(key_[i]) ? 1u << i : 0u;
    return mask;
  }

  /// Of more teams than are wanted.
  __device__ std::uint32_t largest() {
    std::uint32_t low = key_[0];
    std::uint32_t high = key_[0];
#pragma unroll
    for (int i = 1; i < kLaneKeys; ++i) {
      low = min(low, key_[i]);
      high = max(high, key_[i]);
    }
    low = crew_.least(low);
    high = crew_.most(high);
    const auto count = [&](std::uint32_t tried) {
      unsigned own = 0;
#pragma unroll
      for (int i = 0; i < kLaneKeys; ++i) own += key_[i] >= tried ? 1u : 0u;
      return static_cast<int>(crew_.sum(own));
    };
    const std::uint32_t threshold = search_threshold(low, high, a_.list, count);
    if (count(threshold) == a_.list) {
      return mask_of([&](std::uint32_t key) { return key >= threshold; });
    }
    const std::uint32_t above = mask_of([&](std::uint32_t key) { return key > threshold; });
    const auto more = static_cast<int>(crew_.sum(static_cast<unsigned>(__popc(above))));
    return above | first_tied(threshold, a_.list - more);
  }

  /// The lowest `wanted` teams with a key, one after the other: two priorities are seldom the same.
  __device__ std::uint32_t first_tied(std::uint32_t key, int wanted) {
    std::uint32_t taken = 0;
#pragma unroll 1
    for (int n = 0; n < wanted; ++n) {
      auto next = static_cast<unsigned>(INT32_MAX);
#pragma unroll
      for (int i = kLaneKeys - 1; i >= 0; --i) {
        const bool open = key_[i] == key && (taken >> i & 1) == 0;
        if (open) next = static_cast<unsigned>(team_of(i));
      }
      const std::uint32_t least = crew_.least(next);
#pragma unroll
      for (int i = 0; i < kLaneKeys; ++i) {
        if (static_cast<unsigned>(team_of(i)) == least) taken |= 1u << i;
      }
    }
    return taken;
  }

  /// `count`: those named by all threads.
  __device__ void write(std::uint32_t named, int count) {
    const std::int64_t list = (head_row_ * a_.parts + part_) * a_.list;
    std::int64_t at = list + crew_.before(static_cast<unsigned>(__popc(named)));
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      if ((named >> i & 1) == 0) continue;
      a_.part_keys[at] = key_[i];
      a_.part_teams[at++] = team_of(i);
    }
#pragma unroll 1
    for (int i = count + thread_; i < a_.list; i += Shape::kPartThreads) {
      a_.part_keys[list + i] = 0;
      a_.part_teams[list + i] = 0;
    }
  }

  PublishedCta cta_;
  const PublishedArguments& a_;
  int thread_;  // of the part's
  Crew<Shape::kPartWarps> crew_;
  int part_ = 0;
  std::int64_t head_row_ = 0;  // of all groups' heads
  std::uint32_t key_[kLaneKeys];
};

}  // namespace kvsim::santapp
