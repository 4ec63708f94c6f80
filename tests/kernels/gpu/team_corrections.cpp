#include "tests/kernels/gpu/team_corrections.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/santapp/draw.h"
#include "kernels/santapp/settings.h"
#include "kernels/santapp/table.h"

namespace kvsim::testing {
namespace {

/// The rule's ln c of all teams of a head, NaN where it draws none; nothing if it draws all.
std::vector<float> corrections(const santapp::TeamTable& table, const StepView& view, int head,
                               const Scores& scores, std::int64_t draws) {
  if (draws >= table.teams()) return {};
  std::vector<float> result(static_cast<std::size_t>(table.teams()),
                            std::numeric_limits<float>::quiet_NaN());
  const santapp::Draw draw = santapp::draw_teams(table.weights(view, head, scores), draws,
                                                 view.random_of(head, Purpose::kTeamNoise));
  for (std::size_t i = 0; i < draw.teams.size(); ++i) {
    result[static_cast<std::size_t>(draw.teams[i])] = draw.log_inclusion[i];
  }
  return result;
}

}  // namespace

std::int64_t different_corrections(const NamedMethod& method, const DeviceStep& step,
                                   std::span<const std::unique_ptr<State>> states,
                                   const ScreeningDump& dump) {
  const santapp::Settings settings(method.parameters);
  const HostInputs inputs{.states = states};
  const auto stride = static_cast<std::size_t>(dump.bound_stride);
  std::int64_t different = 0;
  for (int b = 0; b < step.batch; ++b) {
    for (int h = 0; h < step.kv_heads; ++h) {
      const auto& table = dynamic_cast<const santapp::TeamTable&>(*inputs.state(step, b, h));
      const StepView view = view_of_group(step, inputs, b, h);
      const auto first = static_cast<std::size_t>(b * step.q_heads + h * step.group());
      const Scores scores{view.rows(), {}, screening_of(view, first, dump)};
      for (int g = 0; g < step.group(); ++g) {
        const std::vector<float> expected = corrections(table, view, g, scores, settings.draws());
        const auto own = dump.bounds.subspan(
            (first + static_cast<std::size_t>(g)) * stride + stride / 2, expected.size());
        for (std::size_t t = 0; t < expected.size(); ++t) {
          const bool same = std::isnan(expected[t]) ? std::isnan(own[t])
                                                    : std::bit_cast<std::uint32_t>(expected[t]) ==
                                                          std::bit_cast<std::uint32_t>(own[t]);
          different += same ? 0 : 1;
        }
      }
    }
  }
  return different;
}

}  // namespace kvsim::testing
