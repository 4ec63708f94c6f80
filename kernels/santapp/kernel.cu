// SANTA++ in one cooperative launch. The CTAs of a (sequence, KV head) share its teams. Each scores
// what routes to its own, and names the candidates of each head; all CTAs find the thresholds for
// themselves from everyone's candidates; then each attends to those of its own teams that are
// drawn, and adds up a slice of the sums. Where every (sequence, KV head) has one CTA only, nothing
// is exchanged and the launch need not be cooperative.

#include <fmt/format.h>

#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/santapp/attend.cuh"
#include "kernels/santapp/digits.cuh"
#include "kernels/santapp/route.cuh"
#include "kernels/santapp/teams_kernel.cuh"

namespace kvsim::santapp {
namespace {

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    santapp_kernel(const __grid_constant__ SantappArguments a) {
  char* shared = device::dynamic_shared();
  const unsigned long long launches = a.partials.launches.read();
  const TeamCta cta(a, shared, Shape::kStash);
  typename Router<T, Shape>::Queries queries;
  Router<T, Shape>(cta, shared).run(queries, launches);
  const std::uint32_t launch = device::LaunchCounter::number(launches);
  if (!cta.takes_all) {
    ThresholdSearch<Shape>(cta, shared, launch).run();
    DigitSearch<Shape>(cta, shared, launch).run();
  }
  device::sync_workers<Shape::kThreads>();  // the ring is free
  MemberAttender<T, Shape> attender(cta, queries, shared);
  attender.run();
  device::sync_workers<Shape::kThreads>();  // sums take its place
  const auto sharing = device::sharing_of<true>(a.split, a.partials, cta.team);
  const typename Shape::Merge merge(a.partials, a.step, a.group, shared, Shape::Merge::kWarpFloats,
                                    shared + Shape::kWeights);
  merge.merge_warps(attender.sums, cta.team, sharing, launch);
  if (sharing.members == 1) return;
  merge.template merge_cut_teams<true>(
      a.split, cta.team, cta.team,
      reinterpret_cast<device::WeightedPair*>(shared + Shape::kMergeBytes), launch);
  device::sync_workers<Shape::kThreads>();
  if (threadIdx.x == 0) a.partials.launches.leave(a.split.ctas);
}

class SantappKernel : public TeamsKernel {
 public:
  using TeamsKernel::TeamsKernel;

  std::string refusal(const DeviceStep& step, const DeviceLimits& limits) const override {
    std::string result = TeamsKernel::refusal(step, limits);
    if (!result.empty()) return result;
    dispatch(step, limits, [&](auto instance) {
      using Shape = ShapeOf<decltype(instance)>;
      const SantappArguments a = arguments<Shape>(step, limits, nullptr).first;
      const std::int64_t named = std::int64_t{8} * a.tiles * a.list;
      if (named > Shape::kFront) {
        result = fmt::format("{} bytes of candidates of a head, which do not fit", named);
      } else if (a.table.teams >= std::int64_t{1} << kTeamBits) {
        result = fmt::format("{} teams, expected less than {}", a.table.teams, 1 << kTeamBits);
      }
    });
    return result;
  }

  std::size_t workspace_bytes(const DeviceStep& step, const DeviceLimits& limits) const override {
    std::size_t bytes = 0;
    dispatch(step, limits, [&](auto instance) {
      bytes = arguments<ShapeOf<decltype(instance)>>(step, limits, nullptr).second;
    });
    return bytes;
  }

  void launch(const DeviceStep& step, const DeviceLimits& limits, std::byte* workspace,
              CUstream_st* stream) const override {
    if (step.prepared == nullptr) fail<RuntimeError>("santapp: launched without teams");
    // Fewer sequences than were asked about may come in more tiles.
    const std::string refused = refusal(step, limits);
    if (!refused.empty()) fail<RuntimeError>("santapp: launched on {}", refused);
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      using Shape = ShapeOf<I>;
      const SantappArguments a = arguments<Shape>(step, limits, workspace).first;
      const int stash = a.stash == nullptr ? stash_bytes(a) : 0;
      kvsim::launch(santapp_kernel<typename I::Element, Shape>, a, grid_of(a.split),
                    Shape::kThreads, Shape::kStash + stash, stream,
                    /*cooperative=*/a.split.ctas_per_team > 1);
    });
  }

 private:
  template <typename I>
  using ShapeOf = SantappShape<I::kDim, I::kHeads8, I::kLarge>;

  /// Of a CTA.
  static int stash_bytes(const SantappArguments& a) {
    return 4 * a.tiles_per_cta * TileView::count(a.group);
  }

  /// Arguments of a launch and the workspace they take.
  template <typename Shape>
  std::pair<SantappArguments, std::size_t> arguments(const DeviceStep& step,
                                                     const DeviceLimits& limits,
                                                     std::byte* workspace) const {
    SantappArguments a;
    a.step = step;
    a.group = step.group();
    a.draws = static_cast<std::int32_t>(settings_.draws());
    a.table = table(step);
    a.routes = routes_of(step, a.table);
    const std::int64_t groups = std::int64_t{step.batch} * step.kv_heads;
    const TileSplit tiles = split_tiles(groups, a.table.teams, limits.sms);
    a.tiles = static_cast<std::int32_t>(tiles.tiles());
    a.tiles_per_cta = static_cast<std::int32_t>(tiles.tiles_per_cta);
    a.list = list_length(a.draws, a.tiles);
    a.split = grid(step, static_cast<std::int32_t>(tiles.ctas_per_team));
    const auto ctas = static_cast<std::size_t>(a.split.ctas);
    const auto heads = static_cast<std::size_t>(a.group);
    Carver carver(workspace);
    TeamSplit shared = a.split;
    if (a.split.ctas_per_team == 1) shared.ctas = 0;  // which exchange no sums
    a.partials = take_partials(carver, shared, a.group, Shape::kDim, /*weighted=*/true);
    a.lists = carver.take<device::TaggedPair>(static_cast<std::size_t>(groups * a.tiles) * heads *
                                              static_cast<std::size_t>(a.list) / 2);
    a.counts = carver.take<device::TaggedPair>(2 * ctas * heads * kBins / 2);
    if (Shape::kStash + stash_bytes(a) + 2 * kSystemSharedBytes > limits.shared_bytes_per_sm) {
      const auto words = static_cast<std::size_t>(stash_bytes(a) / 4);
      a.stash = carver.take<std::uint32_t>(ctas * words);
    }
    return {a, carver.bytes()};
  }

  /// Every (sequence, KV head) has `ctas` of its own.
  static TeamSplit grid(const DeviceStep& step, std::int32_t ctas) {
    TeamSplit split;
    split.batch = step.batch;
    split.kv_heads = step.kv_heads;
    split.ctas_per_team = ctas;
    split.ctas = ctas * step.batch * step.kv_heads;
    split.team_units = 1;
    return split;
  }
};

std::unique_ptr<Kernel> make_kernel(const Parameters& parameters) {
  const Settings settings(parameters);
  if (settings.published) return make_published(settings);
  return std::make_unique<SantappKernel>(settings);
}

KVSIM_REGISTER_KERNEL("santapp", KernelInfo{.make = make_kernel});

}  // namespace
}  // namespace kvsim::santapp
