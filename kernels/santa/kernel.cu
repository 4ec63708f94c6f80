// SANTA samplers in one cooperative launch (or two: implementation=fallback, scores=bernoulli). The
// CTAs of a team stream all keys; scores stay on chip as integer prefix sums (rule.h); one exchange
// of tile records tells every CTA the whole head's distribution; then each draws the samples that
// fall into its own tiles, gathers their V rows, and adds up a slice of the team's sums.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "core/error.h"
#include "kernels/bernoulli/feature_stream.cuh"
#include "kernels/bernoulli/scoring.h"
#include "kernels/device/kernel.h"
#include "kernels/device/key_stream.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/stream_plan.cuh"
#include "kernels/santa/gather.cuh"
#include "kernels/santa/prefix_sums.cuh"
#include "kernels/santa/rule.h"
#include "kernels/santa/sizes.h"

namespace kvsim {
namespace {

using namespace device;

/// True for finishing warps, which have nothing to gather: the caller returns. Workers wait for
/// them before they read what was finished.
template <typename Shape>
__device__ bool leave_to_workers() {
  if (threadIdx.x < static_cast<unsigned>(Shape::kWorkers)) return false;
  join_threads<Shape::kThreads>();
  return true;
}

template <typename T, int D, int kHeads8, bool kLarge, bool kTeams>
__global__ void __launch_bounds__(StreamShape<D, kHeads8, kLarge>::kThreads, 1)
    santa_kernel(const __grid_constant__ SantaArguments arguments) {
  char* const shared = dynamic_shared();
  const unsigned long long launches = arguments.partials.launches.read();
  using Shape = StreamShape<D, kHeads8, kLarge>;
  using Finish = FinishHeads<Shape, PrefixSums>;
  KeyStream<T, Shape, kTeams, Finish>(arguments, shared).run(launches);
  if (leave_to_workers<Shape>()) return;
  SantaGather<T, D, Shape, kTeams>(arguments, shared).run(launches);
}

template <typename T, int D, int kHeads8, bool kLarge>
__global__ void __launch_bounds__(StreamShape<D, kHeads8, kLarge>::kThreads, 1)
    santa_stream_kernel(const __grid_constant__ SantaArguments arguments) {
  char* const shared = dynamic_shared();
  using Shape = StreamShape<D, kHeads8, kLarge>;
  using Finish = FinishHeads<Shape, PrefixSums>;
  KeyStream<T, Shape, false, Finish>(arguments, shared).run(arguments.partials.launches.read());
}

/// The same from Bernoulli scores.
template <typename T, int D, int kHeads8, bool kLarge, bool kTeams>
__global__ void __launch_bounds__(StreamShape<D, kHeads8, kLarge>::kThreads, 1)
    santa_feature_kernel(const __grid_constant__ SantaArguments arguments) {
  char* const shared = dynamic_shared();
  using Shape = StreamShape<D, kHeads8, kLarge>;
  using Finish = FinishHeads<Shape, PrefixSums>;
  FeatureStream<T, Shape, kTeams, Finish>(arguments, shared)
      .run(arguments.partials.launches.read());
}

template <typename T, int D, int kHeads8, bool kLarge>
__global__ void __launch_bounds__(StreamShape<D, kHeads8, kLarge>::kThreads, 1)
    santa_gather_kernel(const __grid_constant__ SantaArguments arguments) {
  char* const shared = dynamic_shared();
  if (leave_to_workers<StreamShape<D, kHeads8, kLarge>>()) return;
  SantaGather<T, D, StreamShape<D, kHeads8, kLarge>, false>(arguments, shared)
      .run(arguments.partials.launches.read());
}

struct SantaOptions {
  SantaRule rule = SantaRule::kSystematic;
  std::uint32_t samples = 128;
  int tile = kMassTile;  // 0: by the prompt's length
  bool offset_per_tile = false;
  bool shared_offsets = false;
  bool released = false;
  bool fallback = false;                      // two launches, prefix sums in memory between them
  std::optional<QueryDraws> query = {};       // of Bernoulli scores, which always take two
  KeyLayout layout = KeyLayout::kTokenMajor;  // their keys
};

class SantaKernel : public Kernel {
 public:
  explicit SantaKernel(const SantaOptions& options) : options_(options) {}

  std::string refusal(const DeviceStep& step, const DeviceLimits& limits) const override {
    if (options_.released) return "mode=released, which has no kernel of ours";
    if (options_.query && options_.layout != KeyLayout::kFeatureMajor) return token_major_refusal();
    const std::string refused = step_refusal(step);
    if (!refused.empty()) return refused;
    const int tile = tile_of(step);
    if (tile != 32 && tile != 64 && tile != 128 && tile != 256) {
      return fmt::format("tile {}, expected 32, 64, 128 or 256", tile);
    }
    std::string result;
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      using Shape = StreamShape<I::kDim, I::kHeads8, I::kLarge>;
      const SantaArguments a = arguments<Shape>(step, limits, nullptr).first;
      if (a.resident_blocks < 0) {
        result = fmt::format("{} tiles, which do not fit into shared memory", a.tiles);
      }
    });
    return result;
  }

  bool wants_features() const override { return options_.query.has_value(); }

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
      const SantaArguments a = arguments<Shape>(step, limits, workspace).first;
      const int shared = stream_shared_bytes(a);
      const auto run = [&](void (*kernel)(SantaArguments), bool cooperative) {
        kvsim::launch(kernel, a, grid_of(a.split), Shape::kThreads, shared, stream, cooperative);
      };
      using T = typename I::Element;
      if (two_launches()) {
        if (options_.query) {
          launch_feature_scores<I>(a, limits, stream);
        } else {
          run(santa_stream_kernel<T, I::kDim, I::kHeads8, I::kLarge>, false);
        }
        run(santa_gather_kernel<T, I::kDim, I::kHeads8, I::kLarge>, true);
      } else if (a.split.ctas_per_team > 0) {
        run(santa_kernel<T, I::kDim, I::kHeads8, I::kLarge, true>, true);
      } else {
        run(santa_kernel<T, I::kDim, I::kHeads8, I::kLarge, false>, true);
      }
    });
  }

 private:
  bool two_launches() const { return options_.fallback || options_.query; }
  int tile_of(const DeviceStep& step) const {
    return options_.tile > 0 ? options_.tile : budget_tile(step.prompt_tokens);
  }

  /// Of the launch that scores by features, and the most blocks of its CTAs.
  static std::pair<TeamSplit, int> score_split(const SantaArguments& a,
                                               const DeviceLimits& limits) {
    const TeamSplit split =
        plan_teams(contexts_of(a.step), a.step.kv_heads, kBlockSplitUnit, limits.sms);
    return {split, static_cast<int>(split.most_units_per_cta())};
  }

  /// The first of two launches. Teams may have CTAs of their own here: what a block's scores become
  /// lies where it lies whoever made it.
  template <typename I>
  void launch_feature_scores(SantaArguments a, const DeviceLimits& limits,
                             CUstream_st* stream) const {
    using T = typename I::Element;
    using Shape = StreamShape<I::kDim, I::kHeads8, I::kLarge>;
    KVSIM_CHECK(a.step.k_by_feature.data != nullptr);
    std::tie(a.split, a.blocks_per_cta) = score_split(a, limits);
    auto* kernel = a.split.ctas_per_team > 0
                       ? santa_feature_kernel<T, I::kDim, I::kHeads8, I::kLarge, true>
                       : santa_feature_kernel<T, I::kDim, I::kHeads8, I::kLarge, false>;
    kvsim::launch(kernel, a, grid_of(a.split), Shape::kThreads, stream_shared_bytes(a), stream);
  }

  /// Arguments of a launch and the workspace they take.
  template <typename Shape>
  std::pair<SantaArguments, std::size_t> arguments(const DeviceStep& step,
                                                   const DeviceLimits& limits,
                                                   std::byte* workspace) const {
    SantaArguments a;
    static_cast<StreamArguments&>(a) =
        plan_stream(step, limits, tile_of(step), /*teams=*/!two_launches());
    a.slots_log2 = gather_slots_log2(a.group, Shape::kWarps);
    a.rule = options_.rule;
    a.samples = options_.samples;
    a.per_sample = 1.0f / static_cast<float>(a.samples);
    a.offset_per_tile = options_.offset_per_tile;
    a.shared_offsets = options_.shared_offsets;
    int front_bytes = GatherLayout::of(a, Shape::kWarps, head_class(step.head_dim)).bytes;
    if (options_.query) {
      a.query = *options_.query;
      a.table_offset = Shape::kRingBytes;
      front_bytes = std::max(front_bytes, Shape::kRingBytes + feature_table_bytes<Shape>());
    }
    plan_shared<Shape>(a, limits, front_bytes);
    if (two_launches()) a.resident_blocks = has_staging(a, limits) ? 0 : -1;
    return lay_out(a, workspace);
  }

  /// Whether the slots fit that blocks take turns in when none is resident.
  static bool has_staging(const SantaArguments& a, const DeviceLimits& limits) {
    const int blocks = std::max({a.blocks_per_cta, kStagingBlocks, score_split(a, limits).second});
    return resident_blocks(blocks, a.group, a.front_bytes, limits.shared_bytes_per_sm) >= 0;
  }

  static std::pair<SantaArguments, std::size_t> lay_out(SantaArguments a, std::byte* workspace) {
    Carver carver(workspace);
    a.partials = take_partials(carver, a.split, a.group, head_class(a.step.head_dim),
                               /*weighted=*/false);
    a.records =
        carver.take<TaggedPair>(static_cast<std::size_t>(a.split.teams() * a.group * a.tiles));
    take_stash(a, carver);
    return {a, carver.bytes()};
  }

  SantaOptions options_;
};

SantaOptions drawn_options(const Parameters& parameters, SantaRule rule) {
  SantaOptions options{
      .rule = rule,
      .samples = static_cast<std::uint32_t>(parameters.integer("samples", 1, kMaxSamples)),
      .shared_offsets = parameters.choice("offsets") == "shared",
      .released = parameters.choice("implementation") == "published",
      .fallback = parameters.choice("implementation") == "fallback"};
  if (parameters.choice("scores") == "exact") return options;
  options.query = query_draws(parameters);
  options.layout = key_layout(parameters);
  return options;
}

SantaOptions prop_options(const Parameters& parameters) {
  const bool unbiased = parameters.choice("mode") == "unbiased";
  SantaOptions options = drawn_options(
      parameters, unbiased ? SantaRule::kSystematicBudgets : SantaRule::kLargestRemainder);
  options.tile = static_cast<int>(parameters.integer("tile", 0, 256));
  options.offset_per_tile = parameters.choice("offsets") == "per-tile";
  options.released = options.released || parameters.choice("mode") == "released";
  return options;
}

KVSIM_REGISTER_KERNEL("santa-sys", KernelInfo{.make = [](const Parameters& p) {
                        return std::make_unique<SantaKernel>(
                            drawn_options(p, SantaRule::kSystematic));
                      }});
KVSIM_REGISTER_KERNEL("santa-iid", KernelInfo{.make = [](const Parameters& p) {
                        return std::make_unique<SantaKernel>(drawn_options(p, SantaRule::kIid));
                      }});
KVSIM_REGISTER_KERNEL("santa-strat", KernelInfo{.make = [](const Parameters& p) {
                        return std::make_unique<SantaKernel>(
                            drawn_options(p, SantaRule::kStratified));
                      }});
KVSIM_REGISTER_KERNEL("santa-prop", KernelInfo{.make = [](const Parameters& p) {
                        return std::make_unique<SantaKernel>(prop_options(p));
                      }});

}  // namespace
}  // namespace kvsim
