// SANTA++ as its paper has it (appendix D), in five plain launches that hand on what they find in
// memory: scores of leaders, the largest of parts of each head's teams, the merge of the parts with
// the union over the group, attention to the union's members, and the sum of its splits.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/device/launch.cuh"
#include "kernels/santapp/published_attend.cuh"
#include "kernels/santapp/published_merge.cuh"
#include "kernels/santapp/published_score.cuh"
#include "kernels/santapp/published_select.cuh"
#include "kernels/santapp/teams_kernel.cuh"

namespace kvsim::santapp {
namespace {

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    score_leaders(const __grid_constant__ PublishedArguments a) {
  const PublishedCta cta(a);
  LeaderScores<T, Shape>(cta, device::dynamic_shared()).run();
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    select_teams(const __grid_constant__ PublishedArguments a) {
  const PublishedCta cta(a);
  const int item = static_cast<int>(blockIdx.x) * Shape::kParts + cta.warp / Shape::kPartWarps;
  if (cta.takes_all || item >= a.parts * a.group) return;
  PartSelect<Shape>(cta, device::dynamic_shared()).run(item);
}

__global__ void __launch_bounds__(TeamMerge::kThreads)
    merge_teams(const __grid_constant__ PublishedArguments a) {
  const PublishedCta cta(a);
  if (!cta.takes_all) TeamMerge(cta, device::dynamic_shared()).run();
}

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attend_members(const __grid_constant__ PublishedArguments a) {
  attend_rows<T, Shape>(a, device::dynamic_shared());
}

template <int D>
__global__ void __launch_bounds__(SplitSum<D>::kThreads)
    sum_splits(const __grid_constant__ PublishedArguments a) {
  SplitSum<D>(a, device::dynamic_shared()).run();
}

class PublishedKernel : public TeamsKernel {
 public:
  using TeamsKernel::TeamsKernel;

  std::string refusal(const DeviceStep& step, const DeviceLimits& limits) const override {
    std::string result = TeamsKernel::refusal(step, limits);
    if (!result.empty()) return result;
    const int bytes = TeamMerge::shared_bytes(stride_of(table(step, nullptr)));
    if (bytes + kSystemSharedBytes > limits.shared_bytes_per_sm) {
      return fmt::format("{} bytes of shared memory for the union of teams", bytes);
    }
    return "";
  }

  std::size_t workspace_bytes(const DeviceStep& step, const DeviceLimits& limits) const override {
    return arguments(step, limits, nullptr).second;
  }

  void launch(const DeviceStep& step, const DeviceLimits& limits, std::byte* workspace,
              CUstream_st* stream) const override {
    if (step.prepared == nullptr) fail<RuntimeError>("santapp: launched without teams");
    const PublishedArguments a = arguments(step, limits, workspace).first;
    dispatch(step, limits, [&](auto instance) {
      using I = decltype(instance);
      using T = typename I::Element;
      using Score = ScoreShape<I::kDim, I::kHeads8>;
      using Attend = AttendShape<I::kDim, I::kHeads8, I::kLarge>;
      using Sum = SplitSum<I::kDim>;
      kvsim::launch(score_leaders<T, Score>, a, grid(a, a.stride / kScoredTeams), Score::kThreads,
                    Score::kSharedBytes, stream);
      launch_select(a, stream);
      kvsim::launch(merge_teams, a, grid(a, 1), TeamMerge::kThreads,
                    TeamMerge::shared_bytes(a.stride), stream);
      kvsim::launch(attend_members<T, Attend>, a, grid(a, a.splits), Attend::kThreads,
                    Attend::kSharedBytes, stream);
      kvsim::launch(sum_splits<I::kDim>, a, grid(a, a.group), Sum::kThreads, Sum::kSharedBytes,
                    stream);
    });
  }

 private:
  static dim3 grid(const PublishedArguments& a, int ctas) {
    return dim3(static_cast<unsigned>(ctas), static_cast<unsigned>(a.step.kv_heads),
                static_cast<unsigned>(a.step.batch));
  }

  template <typename Shape>
  static void launch_parts(const PublishedArguments& a, CUstream_st* stream) {
    const int ctas = (a.parts * a.group + Shape::kParts - 1) / Shape::kParts;
    kvsim::launch(select_teams<Shape>, a, grid(a, ctas), Shape::kThreads, Shape::kSharedBytes,
                  stream);
  }

  static void launch_select(const PublishedArguments& a, CUstream_st* stream) {
    if (a.part == kWarpPart) return launch_parts<SelectShape<8, 1>>(a, stream);
    if (a.part == 2 * kWarpPart) return launch_parts<SelectShape<16, 1>>(a, stream);
    if (a.part == kLargestWarpPart) return launch_parts<SelectShape<32, 1>>(a, stream);
    static_assert(SelectShape<32, 8>::kPart == kCtaPart);
    launch_parts<SelectShape<32, 8>>(a, stream);
  }

  static int stride_of(const PackedTeams& table) {
    return static_cast<int>((table.teams + kScoredTeams - 1) / kScoredTeams) * kScoredTeams;
  }

  /// Rows that the group of a sequence attends to, if its heads draw different teams of nominal
  /// sizes.
  std::int64_t nominal_rows(const DeviceStep& step) const {
    std::int64_t most = 0;
    for (int s = 0; s < step.batch; ++s) {
      const std::int64_t prompt = prompt_rows(step, s);
      const std::int64_t drawn =
          std::min(prompt, settings_.draws() * settings_.nominal_keys() * step.group());
      most = std::max(most, step.contexts[static_cast<std::size_t>(s)] - prompt + drawn);
    }
    return most;
  }

  /// Arguments of the launches and the workspace they take.
  std::pair<PublishedArguments, std::size_t> arguments(const DeviceStep& step,
                                                       const DeviceLimits& limits,
                                                       std::byte* workspace) const {
    PublishedArguments a;
    a.step = step;
    a.table = table(step);
    a.routes = routes_of(step, a.table);
    a.group = step.group();
    a.width = (a.group + 7) / 8 * 8;
    a.draws = static_cast<std::int32_t>(settings_.draws());
    a.stride = stride_of(a.table);
    a.part = part_teams(a.draws, a.table.teams);
    a.parts = (a.stride + a.part - 1) / a.part;
    a.list = part_list(a.draws, a.part);
    const std::int64_t groups = std::int64_t{step.batch} * step.kv_heads;
    a.most_drawn = static_cast<std::int32_t>(std::min(settings_.draws(), a.table.teams));
    a.most_union =
        static_cast<std::int32_t>(std::min(std::int64_t{a.most_drawn} * a.group, a.table.teams));
    a.most_units = static_cast<std::int32_t>(a.table.rows / device::kUnitTokens + 1);
    a.splits = row_splits(groups, nominal_rows(step), limits.sms);
    Carver carver(workspace);
    const std::size_t bytes = carve(a, static_cast<std::size_t>(groups), carver);
    return {a, bytes};
  }

  static std::size_t carve(PublishedArguments& a, std::size_t groups, Carver& carver) {
    const auto times = [](std::size_t count, std::int64_t each) {
      return count * static_cast<std::size_t>(each);
    };
    const std::size_t heads = times(groups, a.group);
    a.weights = carver.take<float>(times(heads, a.stride));
    a.keys = carver.take<std::uint32_t>(times(heads, a.stride));
    a.part_keys = carver.take<std::uint32_t>(times(heads, std::int64_t{a.parts} * a.list));
    a.part_teams = carver.take<std::int32_t>(times(heads, std::int64_t{a.parts} * a.list));
    a.drawn = carver.take<std::int32_t>(times(heads, a.most_drawn));
    a.union_sizes = carver.take<UnionSize>(groups);
    a.union_teams = carver.take<UnionTeam>(times(groups, a.most_union + 1));
    a.union_units = carver.take<std::int32_t>(times(groups, a.most_units));
    a.corrections = carver.take<float>(times(groups, std::int64_t{a.most_union} * a.width));
    const int pairs = head_class(a.step.head_dim) / 2;
    a.partial_values = carver.take<float2>(times(heads, std::int64_t{a.splits} * pairs));
    a.partial_weights = carver.take<PartialWeight>(times(heads, a.splits));
    return carver.bytes();
  }
};

}  // namespace

std::unique_ptr<Kernel> make_published(const Settings& settings) {
  return std::make_unique<PublishedKernel>(settings);
}

}  // namespace kvsim::santapp
