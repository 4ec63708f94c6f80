#pragma once

#include <cstdint>

#include "kernels/santapp/candidates.cuh"
#include "kernels/santapp/published.cuh"

// The third launch, one CTA for each group: a warp for each head finds κ and the K teams above it
// among its parts' candidates; then all build the union of the heads' teams, in the order of teams,
// with each head's ln c.

namespace kvsim::santapp {

class TeamMerge {
 public:
  static constexpr int kWarps = 16;  // a head each
  static constexpr int kThreads = kWarps * device::kWarp;

  KVSIM_HD static int words(int stride) { return stride / 32; }
  static int shared_bytes(int stride) { return 4 * (2 * words(stride) + kWarps); }

  __device__ TeamMerge(const PublishedCta& cta, char* shared)
      : cta_(cta),
        a_(cta.a),
        thread_(static_cast<int>(threadIdx.x)),
        bits_(reinterpret_cast<std::uint32_t*>(shared)),
        ranks_(bits_ + words(a_.stride)),
        scan_(reinterpret_cast<std::int32_t*>(ranks_ + words(a_.stride))),
        head_row_(cta.number * a_.group + cta.warp),
        drawn_(a_.drawn + head_row_ * a_.most_drawn),
        teams_(a_.union_teams + cta.number * (a_.most_union + 1)),
        corrections_(a_.corrections + cta.number * a_.most_union * a_.width) {}

  /// By all threads, unless every team is drawn.
  __device__ void run() {
    for (int i = thread_; i < words(a_.stride); i += kThreads) bits_[i] = 0;
    __syncthreads();
    const bool has_head = cta_.warp < a_.group;
    const float kappa = has_head ? draw() : 0.0f;
    __syncthreads();
    const int teams = scan(
        words(a_.stride), [&](int i) { return __popc(bits_[i]); },
        [&](int i, int, int before) { ranks_[i] = static_cast<std::uint32_t>(before); });
    clear_corrections(teams);
    __syncthreads();
    if (has_head) correct(kappa);
    __syncthreads();
    const int rows = scan(
        teams, [&](int i) { return teams_[i].rows_before; },  // sizes till now
        [&](int i, int size, int before) { place_rows(i, size, before); });
    if (thread_ == 0) {
      teams_[teams] = {rows, 0};
      a_.union_sizes[cta_.number] = {teams, rows};
    }
  }

 private:
  static constexpr int kHeld = 32;  // candidates that a lane keeps in registers

  /// By a warp: lists the teams that its head draws; returns κ.
  __device__ float draw() const {
    const int count = a_.parts * a_.list;
    const std::uint32_t* keys = a_.part_keys + head_row_ * count;
    const std::int32_t* numbers = a_.part_teams + head_row_ * count;
    const HeadThreshold threshold = find_threshold<kHeld>(
        count, a_.draws + 1, cta_.lane, [&](int at) { return keys[at]; },
        [&](int at) { return numbers[at]; });
    int listed = 0;
#pragma unroll 4
    for (int first = 0; first < count; first += device::kWarp) {
      const int at = first + cta_.lane;
      const std::uint32_t key = at < count ? keys[at] : 0u;
      const std::int32_t team = at < count ? numbers[at] : 0;
      const bool above = key != 0 && is_above(key, team, threshold);
      const unsigned lanes = __ballot_sync(0xffffffffu, above);
      if (above) {
        drawn_[listed + __popc(lanes & ((1u << cta_.lane) - 1))] = team;
        atomicOr(bits_ + team / 32, 1u << team % 32);
      }
      listed += __popc(lanes);
    }
    return device::value_of(threshold.key);
  }

  __device__ void clear_corrections(int teams) const {
    const float4 none{INFINITY, INFINITY, INFINITY, INFINITY};
    for (int i = thread_; i < teams * a_.width / 4; i += kThreads) {
      reinterpret_cast<float4*>(corrections_)[i] = none;
    }
  }

  /// By a warp: ln c of its head's teams. All heads that draw a team write where it lies.
  __device__ void correct(float kappa) const {
    const float* weights = a_.weights + head_row_ * a_.stride;
    const std::int32_t* starts = a_.table.starts(cta_.number);
    const int head = cta_.warp;
#pragma unroll 1
    for (int i = cta_.lane; i < a_.draws; i += device::kWarp) {
      const std::int32_t team = drawn_[i];
      const std::int32_t begin = starts[team];
      const std::int32_t end = starts[team + 1];
      const float correction = log_inclusion(weights[team] - kappa);
      const std::uint32_t earlier = bits_[team / 32] & ((1u << team % 32) - 1);
      const int place = static_cast<int>(ranks_[team / 32]) + __popc(earlier);
      corrections_[place * a_.width + head] = correction;
      teams_[place] = {end - begin, begin};
      if (a_.step.bounds == nullptr) continue;
      const std::int64_t stride = a_.step.bound_stride;
      a_.step.bounds[cta_.head_row(head) * stride + stride / 2 + team] = correction;
    }
  }

  __device__ void place_rows(int place, int size, int before) const {
    teams_[place].rows_before = before;
    std::int32_t* units = a_.union_units + cta_.number * a_.most_units;
    const int first = (before + device::kUnitTokens - 1) / device::kUnitTokens;
#pragma unroll 1
    for (int i = first; i * device::kUnitTokens < before + size; ++i) units[i] = place;
  }

  /// Calls store(i, value, sum of values before i) for `count` values; returns the sum of all.
  template <typename ValueAt, typename Store>
  __device__ int scan(int count, const ValueAt& value_at, const Store& store) const {
    int total = 0;
#pragma unroll 1
    for (int first = 0; first < count; first += kThreads) {
      const int i = first + thread_;
      const int value = i < count ? value_at(i) : 0;
      int before = device::lanes_before(value, cta_.lane);
      if (cta_.lane == device::kWarp - 1) scan_[cta_.warp] = before + value;
      __syncthreads();
      before += total;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w < cta_.warp) before += scan_[w];
        total += scan_[w];
      }
      if (i < count) store(i, value, before);
      __syncthreads();  // the sums are read
    }
    return total;
  }

  PublishedCta cta_;
  const PublishedArguments& a_;
  int thread_;
  std::uint32_t* bits_;    // of teams in the union
  std::uint32_t* ranks_;   // teams of it before each word
  std::int32_t* scan_;     // [warps]
  std::int64_t head_row_;  // of all groups' heads, the warp's
  std::int32_t* drawn_;    // [most_drawn]
  UnionTeam* teams_;
  float* corrections_;  // [teams, width]
};

}  // namespace kvsim::santapp
