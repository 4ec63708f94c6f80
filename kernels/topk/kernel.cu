// Top-k in one cooperative launch. The CTAs of a team stream all keys; scores stay on chip as
// integers of the same order; a radix select over the team finds each head's k-th largest; then
// each CTA adds up the V rows that are selected among its own, and a slice of the team's sums.

#include <fmt/format.h>

#include <algorithm>

#include "kernels/device/kernel.h"
#include "kernels/device/key_stream.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/stream_plan.cuh"
#include "kernels/topk/gather.cuh"

namespace kvsim {
namespace {

using namespace device;

template <typename T, int D, int kHeads8, bool kLarge, bool kTeams>
__global__ void __launch_bounds__(StreamShape<D, kHeads8, kLarge>::kThreads, 1)
    topk_kernel(const __grid_constant__ TopkArguments arguments) {
  char* const shared = dynamic_shared();
  const unsigned long long launches = arguments.partials.launches.read();
  using Shape = StreamShape<D, kHeads8, kLarge>;
  using Finish = FinishHeads<Shape, ScoreKeys>;
  KeyStream<T, Shape, kTeams, Finish>(arguments, shared).run(launches);
  __syncthreads();
  if (threadIdx.x >= Shape::kWorkers) return;  // finishing warps
  TopkGather<T, D, Shape, kTeams>(arguments, shared).run(launches);
}

class TopkKernel : public Kernel {
 public:
  TopkKernel(std::uint32_t keys, bool published) : keys_(keys), published_(published) {}

  std::string refusal(const DeviceStep& step, const DeviceLimits& limits) const override {
    if (published_) return "implementation=published, which has no kernel of ours";
    const std::string refused = step_refusal(step);
    if (!refused.empty()) return refused;
    std::string result;
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      using Shape = StreamShape<I::kDim, I::kHeads8, I::kLarge>;
      const TopkArguments a = arguments<Shape>(step, limits, nullptr).first;
      if (a.resident_blocks < 0) {
        result =
            fmt::format("{} blocks of {} teams in a CTA, which do not fit into its shared memory",
                        a.blocks_per_cta, a.most_teams);
      }
    });
    return result;
  }

  std::size_t workspace_bytes(const DeviceStep& step, const DeviceLimits& limits) const override {
    std::size_t bytes = 0;
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      bytes = arguments<StreamShape<I::kDim, I::kHeads8, I::kLarge>>(step, limits, nullptr).second;
    });
    return bytes;
  }

  void launch(const DeviceStep& step, const DeviceLimits& limits, std::byte* workspace,
              CUstream_st* stream) const override {
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      using Shape = StreamShape<I::kDim, I::kHeads8, I::kLarge>;
      using T = typename I::Element;
      const TopkArguments a = arguments<Shape>(step, limits, workspace).first;
      auto* kernel = a.split.ctas_per_team > 0
                         ? topk_kernel<T, I::kDim, I::kHeads8, I::kLarge, true>
                         : topk_kernel<T, I::kDim, I::kHeads8, I::kLarge, false>;
      kvsim::launch(kernel, a, grid_of(a.split), Shape::kThreads, stream_shared_bytes(a), stream,
                    /*cooperative=*/true);
    });
  }

 private:
  /// Arguments of a launch and the workspace they take.
  template <typename Shape>
  std::pair<TopkArguments, std::size_t> arguments(const DeviceStep& step,
                                                  const DeviceLimits& limits,
                                                  std::byte* workspace) const {
    TopkArguments a{plan_stream(step, limits, kBlockTokens, /*teams=*/true)};
    a.keys = keys_;
    a.most_teams = a.split.ctas_per_team > 0 ? 1 : std::min(a.blocks_per_cta, a.split.teams());
    a.parts_log2 = gather_parts_log2(a.group, Shape::kWarps);
    const int dim = head_class(step.head_dim);
    plan_shared<Shape>(a, limits, TopkLayout::of(a, Shape::kWarps, dim).bytes);
    const auto heads = static_cast<std::size_t>(a.split.teams() * a.group);
    const auto slots = static_cast<std::size_t>(2 * a.split.ctas * a.group);
    Carver carver(workspace);
    a.partials = take_partials(carver, a.split, a.group, dim, /*weighted=*/true);
    a.records = carver.take<TaggedPair>(heads * static_cast<std::size_t>(a.tiles));
    a.results = carver.take<TaggedPair>(kRounds * heads);
    a.histograms = carver.take<TaggedPair>(kRounds * slots * kBins / 2);
    take_stash(a, carver);
    return {a, carver.bytes()};
  }

  std::uint32_t keys_;
  bool published_;
};

KVSIM_REGISTER_KERNEL("topk", KernelInfo{.make = [](const Parameters& p) {
                        return std::make_unique<TopkKernel>(
                            static_cast<std::uint32_t>(p.integer("keys", 1, std::int64_t{1} << 24)),
                            p.choice("implementation") == "published");
                      }});

}  // namespace
}  // namespace kvsim
