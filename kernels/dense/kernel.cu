// Dense attention in one cooperative launch. Each warp streams units of 16 K and 16 V rows through
// a ring of its own, so no CTA-wide barrier lies on the stream; scores are K Q^T on tensor cores
// with heads on the N side; each CTA of a team adds up a slice of the team's partial results.

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>

#include "kernels/dense/accumulator.cuh"
#include "kernels/device/check.cuh"
#include "kernels/device/exchange.cuh"
#include "kernels/device/kernel.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/units.cuh"

namespace kvsim {
namespace {

using namespace device;

/// What the beginning of a kernel reads lies close together: constants are fetched line by line.
struct DenseArguments {
  Partials partials;
  std::int32_t group = 1;  // of the step: a division less
  TeamSplit split;
  DeviceStep step;
};

/// Sizes of one instance: warps and stages fill 128 KB of shared memory, which keeps enough bytes
/// under way for one CTA per SM; or 64 KB where an SM has less than 160 KB.
template <int D, int kHeads8, bool kLarge>
struct DenseShape {
  static constexpr int kWarps = (D == 256 ? 4 : 8) / (kLarge ? 1 : 2);
  static constexpr int kStages = D == 64 ? 4 : 2;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kStageBytes = 2 * UnitTile<D>::kBytes;
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;
  using Merge = DenseMerge<D, kHeads8, kWarps>;
  static constexpr int kWeights = kRingBytes + 4 * kWarps * Merge::kWarpFloats;
  static constexpr int kSharedBytes = kWeights + Merge::kWeightBytes;
};

template <typename T, int D, int kHeads8, bool kLarge, bool kTeams>
class DenseCta {
 public:
  using Shape = DenseShape<D, kHeads8, kLarge>;

  __device__ DenseCta(const DenseArguments& arguments, char* shared)
      : a_(arguments),
        ring_scratch_(reinterpret_cast<WeightedPair*>(shared)),
        merge_(a_.partials, a_.step, a_.group, shared + Shape::kRingBytes,
               Shape::Merge::kWarpFloats, shared + Shape::kWeights),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        ring_(shared_address(shared) +
              static_cast<std::uint32_t>(warp_ * Shape::kStages * Shape::kStageBytes)),
        ahead_(units_of_warp<kTeams>(a_.split, warp_, Shape::kWarps)),
        keys_(a_.step.k, a_.step.head_dim, lane_, evict_first_policy()),
        values_(a_.step.v, a_.step.head_dim, lane_, evict_first_policy()) {}

  __device__ void run() {
    TeamSplit::Team team = ahead_.team;
    const TeamSplit::Team first = team;
    std::int32_t position = ahead_.position;
    ahead_.settle(a_.split);
    const unsigned long long launches = a_.partials.launches.read();
    seek();
#pragma unroll 1
    for (int s = 0; s < Shape::kStages; ++s) {
      copy_keys(ring_ + s * Shape::kStageBytes);
      if (s == 0) load_queries(team);  // behind the whole ring's loads they would wait for it
      copy_values(ring_ + s * Shape::kStageBytes);
    }
    std::uint32_t tile = ring_;
    while (true) {
      const Sharing sharing = sharing_of<kTeams>(a_.split, a_.partials, team);
      sums_.clear();
      const std::int32_t stop = min(team.end, ahead_.end);
      int tokens = tokens_from(team, position);
      for (; position < stop; position += ahead_.step) {
        attend(tile, tokens);
        tile = tile + Shape::kStageBytes == ring_ + Shape::kStages * Shape::kStageBytes
                   ? ring_
                   : tile + Shape::kStageBytes;
        tokens -= ahead_.step * kUnitTokens;
      }
      if (launch_ == 0) launch_ = LaunchCounter::number(launches);
      if constexpr (!kTeams) __syncthreads();  // the team before may still be read
      merge_.merge_warps(sums_, team, sharing, launch_);
      if (kTeams || team.end >= ahead_.end) break;
      team = a_.split.next(team);
      load_queries(team);
    }
    merge_.template merge_cut_teams<kTeams>(a_.split, first, team, ring_scratch_, launch_);
    __syncthreads();
    if (threadIdx.x == 0) a_.partials.launches.leave(a_.split.ctas);
  }

 private:
  __device__ int tokens_from(const TeamSplit::Team& team, std::int32_t position) const {
    return context_of<kTeams>(a_.step, team.sequence) - (position - team.begin) * kUnitTokens;
  }

  __device__ void load_queries(const TeamSplit::Team& team) {
    queries_.load(
        static_cast<const T*>(a_.step.q) + first_head(a_.step, a_.group, team) * a_.step.head_dim,
        a_.group, a_.step.head_dim, lane_);
  }

  /// Points the readers at the stream's position.
  __device__ void seek() {
    if (ahead_.done()) return;
    const int token = (ahead_.position - ahead_.team.begin) * kUnitTokens;
    keys_.seek(ahead_.team.sequence, ahead_.team.kv_head, token);
    values_.seek(ahead_.team.sequence, ahead_.team.kv_head, token);
    ahead_tokens_ = tokens_from(ahead_.team, ahead_.position);
  }

  // A unit's keys and values are copied as groups of their own, each as soon as its place is free,
  // so that little of the ring is idle while a unit is worked on. Groups are empty at the end.

  __device__ void copy_keys(std::uint32_t tile) const {
    if (!ahead_.done()) keys_.copy(tile, ahead_tokens_);
    commit_copies();
  }

  __device__ void copy_values(std::uint32_t tile) {
    if (!ahead_.done()) {
      values_.copy(tile + UnitTile<D>::kBytes, ahead_tokens_);
      if (ahead_.advance(a_.split)) {
        seek();
      } else if (!ahead_.done()) {
        const int token = (ahead_.position - ahead_.team.begin) * kUnitTokens;
        const int jump = ahead_.step * kUnitTokens;
        keys_.advance(jump, ahead_.team.sequence, ahead_.team.kv_head, token);
        values_.advance(jump, ahead_.team.sequence, ahead_.team.kv_head, token);
        ahead_tokens_ -= jump;
      }
    }
    commit_copies();
  }

  __device__ void attend(std::uint32_t tile, int tokens) {
    constexpr int kGroupsAfter = 2 * Shape::kStages - 1;
    float s[kHeads8][4];
    wait_copies<kGroupsAfter>();
    __syncwarp();
    score_unit<T, D, kHeads8>(s, tile, queries_, lane_);
    __syncwarp();
    copy_keys(tile);
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= a_.step.scale * kLog2e;
    }
    if (a_.step.logit_cap > 0 || tokens < kUnitTokens) cap_and_mask(s, tokens);
    wait_copies<kGroupsAfter>();
    __syncwarp();
    sums_.template add<T>(s, tile + UnitTile<D>::kBytes, lane_);
    __syncwarp();
    copy_values(tile);
  }

  __device__ void cap_and_mask(float (&s)[kHeads8][4], int tokens) const {
    const float cap = a_.step.logit_cap * kLog2e;
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = capped(s[n][i], cap);
        if (lane_ / 4 + 8 * (i / 2) >= tokens) s[n][i] = -INFINITY;
      }
    }
  }

  const DenseArguments& a_;
  WeightedPair* ring_scratch_;  // the ring, when it is empty
  typename Shape::Merge merge_;
  int warp_;
  int lane_;
  std::uint32_t ring_;
  UnitStream<kTeams> ahead_;
  std::uint32_t launch_ = 0;  // this launch's number
  int ahead_tokens_ = 0;      // from the stream's position to the end of its sequence
  UnitReader<T, D> keys_;
  UnitReader<T, D> values_;
  QueryFragments<T, D, kHeads8> queries_;
  Accumulator<D, kHeads8> sums_;
};

template <typename T, int D, int kHeads8, bool kLarge, bool kTeams>
__global__ void __launch_bounds__(DenseShape<D, kHeads8, kLarge>::kThreads, 1)
    dense_kernel(const __grid_constant__ DenseArguments arguments) {
  char* const shared = dynamic_shared();
  DenseCta<T, D, kHeads8, kLarge, kTeams>(arguments, shared).run();
}

class DenseKernel : public Kernel {
 public:
  explicit DenseKernel(bool published) : published_(published) {}

  std::string refusal(const DeviceStep& step, const DeviceLimits& limits) const override {
    if (published_) return "implementation=published, which has no kernel of ours";
    std::string result = step_refusal(step);
    if (!result.empty()) return result;
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      constexpr int kBytes = DenseShape<I::kDim, I::kHeads8, I::kLarge>::kSharedBytes;
      if (kBytes + kSystemSharedBytes > limits.shared_bytes_per_sm) {
        result = fmt::format("{} bytes of shared memory per CTA, more than the GPU has", kBytes);
      }
    });
    return result;
  }

  std::size_t workspace_bytes(const DeviceStep& step, const DeviceLimits& limits) const override {
    return layout(step, limits, nullptr).second;
  }

  void launch(const DeviceStep& step, const DeviceLimits& limits, std::byte* workspace,
              CUstream_st* stream) const override {
    const DenseArguments arguments{layout(step, limits, workspace).first, step.group(),
                                   split(step, limits), step};
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      using T = typename I::Element;
      using Shape = DenseShape<I::kDim, I::kHeads8, I::kLarge>;
      auto* kernel = arguments.split.ctas_per_team > 0
                         ? dense_kernel<T, I::kDim, I::kHeads8, I::kLarge, true>
                         : dense_kernel<T, I::kDim, I::kHeads8, I::kLarge, false>;
      kvsim::launch(kernel, arguments, grid_of(arguments.split), Shape::kThreads,
                    Shape::kSharedBytes, stream, /*cooperative=*/true);
    });
  }

 private:
  static TeamSplit split(const DeviceStep& step, const DeviceLimits& limits) {
    return plan_teams(contexts_of(step), step.kv_heads, dense_split_unit(step.head_dim),
                      limits.sms);
  }

  static std::pair<Partials, std::size_t> layout(const DeviceStep& step, const DeviceLimits& limits,
                                                 std::byte* workspace) {
    Carver carver(workspace);
    const Partials partials = take_partials(carver, split(step, limits), step.group(),
                                            head_class(step.head_dim), /*weighted=*/true);
    return {partials, carver.bytes()};
  }

  bool published_;
};

KVSIM_REGISTER_KERNEL("dense", KernelInfo{.make = [](const Parameters& p) {
                        return std::make_unique<DenseKernel>(p.choice("implementation") ==
                                                             "published");
                      }});

}  // namespace
}  // namespace kvsim
