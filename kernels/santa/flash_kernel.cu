// santa-flash in one cooperative launch: streaming warps score keys; finishing warps draw each
// block's samples and add up their V rows meanwhile; the CTAs of a team exchange weighted sums.

#include <fmt/format.h>

#include <algorithm>

#include "kernels/device/kernel.h"
#include "kernels/device/key_stream.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/stream_plan.cuh"
#include "kernels/santa/flash.cuh"
#include "kernels/santa/rule.h"

namespace kvsim {
namespace {

using namespace device;

/// By the streaming warps, whose rings are empty: the sums of the share's first and last team.
template <typename Shape, bool kTeams>
__device__ void add_up_teams(const FlashArguments& a, char* shared, unsigned long long launches) {
  const TeamSplit::Team first = units_of_cta<kTeams>(a.split).team;
  TeamSplit::Team last = first;
  if constexpr (!kTeams) last = a.split.team_at(a.split.share_begin(this_cta() + 1) - 1);
  const TeamSum<Shape::kDim, Shape::kWorkers, true> sum(a.partials, a.group,
                                                        reinterpret_cast<WeightedPair*>(shared),
                                                        LaunchCounter::number(launches));
#pragma unroll 1
  for (int i = 0; i < (kTeams ? 1 : 2); ++i) {
    if (i == 1 && last.begin == first.begin) break;
    const TeamSplit::Team team = i == 0 ? first : last;
    const Sharing sharing = sharing_of<kTeams>(a.split, a.partials, team);
    if (sharing.members == 1) continue;
    sum.run(sharing, [&](int head, int column, const WeightedPair& total) {
      write_weighted(a.step, a.group, team, head, column, total);
    });
  }
}

template <typename T, int D, int kHeads8, bool kLarge, bool kTeams>
__global__ void __launch_bounds__(FlashShape<D, kHeads8, kLarge>::kThreads, 1)
    santa_flash_kernel(const __grid_constant__ FlashArguments arguments) {
  char* const shared = dynamic_shared();
  using Shape = FlashShape<D, kHeads8, kLarge>;
  using Finish = FlashDraws<T, Shape, kTeams>;
  const unsigned long long launches = arguments.partials.launches.read();
  KeyStream<T, Shape, kTeams, Finish>(arguments, shared).run(launches);
  if (threadIdx.x < static_cast<unsigned>(Shape::kWorkers)) {
    add_up_teams<Shape, kTeams>(arguments, shared, launches);
  }
  join_threads<Shape::kThreads>();
  if (threadIdx.x == 0) arguments.partials.launches.leave(arguments.split.ctas);
}

struct FlashOptions {
  std::uint32_t samples = 2048;
  int tile = 0;  // 0: by the prompt's length
  bool offset_per_tile = false;
  bool shared_offsets = false;
  bool released = false;
  bool bernoulli = false;  // scores
};

class FlashKernel : public Kernel {
 public:
  explicit FlashKernel(const FlashOptions& options) : options_(options) {}

  std::string refusal(const DeviceStep& step, const DeviceLimits& limits) const override {
    if (options_.released)
      return "mode=released or implementation=published, without a kernel of ours";
    if (options_.bernoulli) return "scores=bernoulli, which has no kernel of ours";
    const std::string refused = step_refusal(step);
    if (!refused.empty()) return refused;
    const int tile = tile_of(step);
    if (tile != 32 && tile != 64 && tile != 128 && tile != 256) {
      return fmt::format("tile {}, expected 32, 64, 128 or 256", tile);
    }
    std::string result;
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      using Shape = FlashShape<I::kDim, I::kHeads8, I::kLarge>;
      const FlashArguments a = arguments<Shape>(step, limits, nullptr).first;
      if (a.staging_blocks < 1) result = "a group whose scores do not fit into shared memory";
      if (a.tiles >= kMostTiles) {
        result = fmt::format("{} tiles, expected less than {}", a.tiles, kMostTiles);
      }
    });
    return result;
  }

  std::size_t workspace_bytes(const DeviceStep& step, const DeviceLimits& limits) const override {
    std::size_t bytes = 0;
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      bytes = arguments<FlashShape<I::kDim, I::kHeads8, I::kLarge>>(step, limits, nullptr).second;
    });
    return bytes;
  }

  void launch(const DeviceStep& step, const DeviceLimits& limits, std::byte* workspace,
              CUstream_st* stream) const override {
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      using Shape = FlashShape<I::kDim, I::kHeads8, I::kLarge>;
      using T = typename I::Element;
      const FlashArguments a = arguments<Shape>(step, limits, workspace).first;
      auto* kernel = a.split.ctas_per_team > 0
                         ? santa_flash_kernel<T, I::kDim, I::kHeads8, I::kLarge, true>
                         : santa_flash_kernel<T, I::kDim, I::kHeads8, I::kLarge, false>;
      kvsim::launch(kernel, a, grid_of(a.split), Shape::kThreads, stream_shared_bytes(a), stream,
                    /*cooperative=*/true);
    });
  }

 private:
  int tile_of(const DeviceStep& step) const {
    return options_.tile > 0 ? options_.tile : budget_tile(step.prompt_tokens);
  }

  /// Arguments of a launch and the workspace they take.
  template <typename Shape>
  std::pair<FlashArguments, std::size_t> arguments(const DeviceStep& step,
                                                   const DeviceLimits& limits,
                                                   std::byte* workspace) const {
    constexpr int kMostStaging = 8;  // blocks that finishing warps may be behind
    FlashArguments a{plan_stream(step, limits, tile_of(step), /*teams=*/true)};
    a.samples = options_.samples;
    a.offset_per_tile = options_.offset_per_tile;
    a.shared_offsets = options_.shared_offsets;
    while (2 * a.sharers * a.group <= Shape::kFinishWarps) a.sharers *= 2;
    a.front_bytes = (FlashLayout<Shape>::kBytes + 127) / 128 * 128;
    a.resident_blocks = 0;  // no block is needed again
    const std::int64_t slots =
        slots_beside(a.blocks_per_cta, a.group, a.front_bytes, limits.shared_bytes_per_sm);
    a.staging_blocks =
        static_cast<int>(std::min<std::int64_t>(slots, std::min(a.blocks_per_cta, kMostStaging)));
    Carver carver(workspace);
    a.partials = take_partials(carver, a.split, a.group, Shape::kDim, /*weighted=*/true);
    return {a, carver.bytes()};
  }

  FlashOptions options_;
};

KVSIM_REGISTER_KERNEL(
    "santa-flash", KernelInfo{.make = [](const Parameters& p) {
      return std::make_unique<FlashKernel>(FlashOptions{
          .samples = static_cast<std::uint32_t>(p.integer("samples", 1, kMaxSamples)),
          .tile = static_cast<int>(p.integer("tile", 0, 256)),
          .offset_per_tile = p.choice("offsets") == "per-tile",
          .shared_offsets = p.choice("offsets") == "shared",
          .released = p.choice("mode") == "released" || p.choice("implementation") == "published",
          .bernoulli = p.choice("scores") != "exact"});
    }});

}  // namespace
}  // namespace kvsim
