#include "tests/sim/stand_in_gpu.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "kernels/eta/records.h"
#include "kernels/eta/settings.h"
#include "kernels/measure/gpu_layer.h"
#include "kernels/santapp/sizes.h"
#include "kernels/santapp/table.h"
#include "tests/catch.h"

namespace kvsim::testing {
namespace {

class StandIn : public GpuLayer {
 public:
  StandIn(const GpuLayerInput& input, std::span<const NamedMethod> methods, Fault fault)
      : input_(input), methods_(methods), fault_(fault), states_(methods.size()) {}

  void keep_states(std::size_t method, std::span<const State* const> states) override {
    CHECK(states.size() == static_cast<std::size_t>(input_.kv_heads));
    states_[method].assign(states.begin(), states.end());
  }
  void enqueue(const GpuLaunch& launch) override {
    REQUIRE(enqueued_ - taken_ < 2);
    Slot& slot = slots_[enqueued_++ % 2];
    slot = {};
    for (int h = 0; h < input_.kv_heads; ++h) answer(launch, h, slot);
    if (fault_.block >= 0) {
      const std::size_t blocks = slot.bounds.size() / static_cast<std::size_t>(input_.q_heads);
      slot.bounds[static_cast<std::size_t>(fault_.head) * blocks +
                  static_cast<std::size_t>(fault_.block)] = 1e9f;
    } else if (fault_.head >= 0) {
      slot.counts[static_cast<std::size_t>(fault_.head * (launch.rows.end - launch.rows.begin) +
                                           fault_.row)] += 1;
    }
  }
  GpuOutput take() override {
    REQUIRE(taken_ < enqueued_);
    const Slot& slot = slots_[taken_++ % 2];
    return {slot.output, slot.scores, slot.counts, slot.bounds};
  }
  std::vector<Estimate> times(const GpuLaunch& launch, std::span<const std::int64_t> steps,
                              const StepThresholds& thresholds, bool cold) override {
    REQUIRE(thresholds.size() == methods_.size());
    for (std::size_t i = 0; i < methods_.size(); ++i) {
      const auto heads = static_cast<std::size_t>(input_.q_heads);
      CHECK(thresholds[i].size() == (methods_[i].name == "eta" ? steps.size() * heads : 0));
    }
    CHECK(taken_ == enqueued_);
    CHECK(cold);
    CHECK(launch.step == steps[steps.size() / 2]);
    std::vector<Estimate> result;
    for (std::size_t i = 0; i < methods_.size(); ++i) {
      const auto us = static_cast<double>(i + 1);
      result.push_back({us, us - 0.5, us + 1, Source::kMeasured});
    }
    return result;
  }

 private:
  struct Slot {
    std::vector<float> output;
    std::vector<float> scores;
    std::vector<std::uint32_t> counts;
    std::vector<float> bounds;
  };

  RowsView rows_of(const std::byte* data, int kv_head, const Range& rows) const {
    return RowsView{data + 2 * kv_head * input_.tokens * input_.head_dim, input_.type,
                    input_.tokens, input_.head_dim, input_.head_dim}
        .slice(rows.begin, rows.end);
  }

  void answer(const GpuLaunch& launch, int kv_head, Slot& slot) const {
    const int group = input_.q_heads / input_.kv_heads;
    const std::int64_t first = launch.step * input_.q_heads + kv_head * group;
    std::vector<float> queries(static_cast<std::size_t>(group * input_.head_dim));
    load_rows(
        {input_.q, input_.type, input_.steps * input_.q_heads, input_.head_dim, input_.head_dim},
        first, first + group, input_.head_dim, queries.data());
    StepView view;
    view.k = rows_of(input_.k, kv_head, launch.rows);
    view.v = rows_of(input_.v, kv_head, launch.rows);
    view.queries = queries;
    view.group = group;
    view.scale = input_.scale;
    view.logit_cap = input_.logit_cap;
    if (!input_.sink_logits.empty()) {
      view.sink_logits = input_.sink_logits.subspan(static_cast<std::size_t>(kv_head * group),
                                                    static_cast<std::size_t>(group));
    }
    view.prompt_tokens = input_.prompt_tokens;
    view.random = launch.random;
    view.random.head = static_cast<std::uint32_t>(kv_head * group);
    const NamedMethod& named = methods_[launch.method];
    Scores scores = exact_scores(view);
    if (named.name == "eta") {
      const eta::Settings settings(named.parameters);
      eta::Records records(settings.block, settings.spread);
      records.extend(view.k);
      const auto own = launch.thresholds.subspan(view.random.head, static_cast<std::size_t>(group));
      scores.screening = {records.bounds(view, settings.z), {own.begin(), own.end()}};
      append(scores.screening.bounds, slot.bounds);
    }
    std::unique_ptr<santapp::TeamTable> teams;
    if (named.name == "santapp") {
      const State* kept = states_[launch.method].at(static_cast<std::size_t>(kv_head));
      teams = std::make_unique<santapp::TeamTable>(dynamic_cast<const santapp::TeamTable&>(*kept));
      teams->rows = view.rows();
      scores.screening.bounds = leader_logits(*teams, scores, group);
      append(scores.screening.bounds, slot.bounds);
    }
    const Selection selection = named.method->select(view, scores, teams.get());
    append(named.method->attend(view, selection), slot.output);
    const std::size_t begin = slot.counts.size();
    for (const HeadSelection& head : selection.heads) count(head, view.rows(), slot.counts);
    const bool partly = named.name == "eta" || named.name == "santapp";
    for (std::size_t i = 0; i < scores.values.size() && partly; ++i) {
      slot.counts[begin + i] = attends(selection, view, i) ? 1 : 0;
      if (slot.counts[begin + i] == 0) scores.values[i] = NAN;
    }
    append(scores.values, slot.scores);
  }

  /// Of each head as a kernel dumps them: room for as many teams as there may be, and for ln c.
  std::vector<float> leader_logits(const santapp::TeamTable& teams, const Scores& scores,
                                   int group) const {
    const std::int64_t room = 2 * santapp::most_teams(input_.prompt_tokens, 16, 4);
    std::vector<float> logits(static_cast<std::size_t>(room * group), NAN);
    for (int g = 0; g < group; ++g) {
      for (std::int32_t t = 0; t < teams.teams(); ++t) {
        const std::int32_t leader = teams.grouped().leaders[static_cast<std::size_t>(t)];
        logits[static_cast<std::size_t>(g * room + t)] =
            scores.head(g)[static_cast<std::size_t>(leader)];
      }
    }
    return logits;
  }

  /// Whether a group attends to the row at place `i` of a dump.
  static bool attends(const Selection& selection, const StepView& view, std::size_t i) {
    const auto rows = static_cast<std::size_t>(view.rows());
    const auto row = static_cast<std::int64_t>(i % rows);
    const auto ranges = selection.heads[i / rows].v_rows.ranges();
    return std::any_of(ranges.begin(), ranges.end(),
                       [row](const Range& range) { return range.begin <= row && row < range.end; });
  }

  static void append(const std::vector<float>& values, std::vector<float>& to) {
    to.insert(to.end(), values.begin(), values.end());
  }
  static void count(const HeadSelection& head, std::int64_t rows, std::vector<std::uint32_t>& to) {
    const std::size_t begin = to.size();
    to.resize(begin + static_cast<std::size_t>(rows), 0);
    std::size_t next = 0;
    for (const Range& range : head.v_rows.ranges()) {
      for (std::int64_t r = range.begin; r < range.end; ++r) {
        to[begin + static_cast<std::size_t>(r)] = static_cast<std::uint32_t>(head.weights[next++]);
      }
    }
  }

  GpuLayerInput input_;
  std::span<const NamedMethod> methods_;
  Fault fault_;
  std::vector<std::vector<const State*>> states_;  // [methods] of [kv_heads]
  Slot slots_[2];
  std::size_t enqueued_ = 0;
  std::size_t taken_ = 0;
};

}  // namespace

StandInGpu::StandInGpu(Fault fault) : real_(measure_backend()) {
  measure_backend().info = [] {
    GpuInfo info;
    info.name = "Stand-in";
    info.driver = "1.2";
    return info;
  };
  measure_backend().layer = [fault](const GpuLayerInput& input,
                                    std::span<const NamedMethod> methods) {
    return std::unique_ptr<GpuLayer>(std::make_unique<StandIn>(input, methods, fault));
  };
}

}  // namespace kvsim::testing
