#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/method.h"
#include "kernels/santapp/settings.h"
#include "kernels/santapp/teams.h"

namespace kvsim::santapp {

/// Bytes that a kernel reads of every team: what routes to it, in 16 bits, and where its members
/// begin.
constexpr std::int64_t record_bytes(int head_dim) { return 2 * head_dim + 4; }

/// One KV head's teams and what routes to them.
class TeamTable : public State {
 public:
  TeamTable(const CacheView& prompt, const Settings& settings);

  std::int32_t teams() const { return teams_.partition.parts(); }
  std::span<const std::int32_t> members(std::int32_t team) const {
    return teams_.partition.part(team);
  }
  /// Of its members among all, team by team.
  std::uint32_t start(std::int32_t team) const {
    return static_cast<std::uint32_t>(teams_.partition.starts[static_cast<std::size_t>(team)]);
  }
  std::int64_t prompt() const { return static_cast<std::int64_t>(teams_.partition.members.size()); }
  const Teams& grouped() const { return teams_; }
  bool routes_by_mean() const { return !means_.empty(); }
  std::span<const float> mean(std::int32_t team) const;  // [head_dim]

  /// φ of all teams for one query head: from a kernel's own logits of what routes to them,
  /// scores.screening.bounds, where there are such.
  std::vector<float> weights(const StepView& view, int head, const Scores& scores) const;

  /// ln of each prompt row's chance to be the first that one head draws: a team's share of Σ e^φ,
  /// spread equally over its keys (section 2.4).
  std::vector<double> log_proposal(const StepView& view, int head, const Scores& scores) const;

  /// Whether a step sees all of the prompt and the suffix: a window's teams would be others.
  bool covers(const StepView& view) const { return view.rows() == rows; }

  std::int64_t bytes() const override { return teams() * record_bytes(dim_); }
  std::string note() const override;

  std::int64_t rows = 0;  // of the cache, prompt and suffix
  bool windowed = false;  // some step saw a window

 private:
  std::vector<float> routing_logits(const StepView& view, int head, const Scores& scores) const;

  Teams teams_;
  int dim_;
  std::vector<float> means_;  // [teams, padded], if they route, rounded as the cache's rows are
};

}  // namespace kvsim::santapp
