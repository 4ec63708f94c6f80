// Elastic Threshold Attention (arXiv 2609.20888): each query head takes the blocks of keys whose
// bound of the logits reaches its threshold, and gates the logits in them.

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/dense/softmax.h"
#include "kernels/eta/blocks.h"
#include "kernels/eta/cost.h"
#include "kernels/eta/records.h"
#include "kernels/eta/rule.h"
#include "kernels/eta/settings.h"
#include "kernels/eta/thresholds.h"
#include "kernels/method.h"

namespace kvsim::eta {
namespace {

class EtaState : public State {
 public:
  EtaState(const Settings& settings, const CacheView& prompt)
      : records(std::max(settings.block, 2), settings.spread), settings_(settings) {
    const bool calibrates =
        settings.source == Source::kAuto || settings.source == Source::kCalibrated;
    if (calibrates && !prompt.probes.empty()) {
      constants = calibrated_thresholds(prompt, settings.density);
      probes_ = std::min(kProbes, prompt.probes.front().rows);
    }
  }

  std::int64_t bytes() const override { return settings_.is_token_exact() ? 0 : records.bytes(); }
  std::string note() const override;

  Records records;
  std::vector<float> constants;  // [group], calibrated; empty: no probes
  bool learned = false;          // the last step's thresholds were
  bool trained = false;          // the trace has learned ones

 private:
  Settings settings_;
  std::int64_t probes_ = 0;
};

std::string EtaState::note() const {
  if (learned || settings_.source == Source::kLearned) return {};
  std::string text =
      settings_.source == Source::kUnion
          ? fmt::format("eta: thresholds chosen so that a group loads {} of its full blocks",
                        settings_.density)
          : fmt::format("eta: thresholds calibrated for density {} on the last {} prompt queries",
                        settings_.density, probes_);
  if (trained) return text;
  text += "; the trace has no learned ones";
  if (settings_.gate != Gate::kNone) {
    text +=
        ", and the gate changes the softmax of a model trained without it (gate=none leaves it)";
  }
  return text;
}

class Eta : public Method {
 public:
  explicit Eta(const Parameters& parameters)
      : settings_(parameters),
        cost_(make_cost(settings_.published, settings_.block, settings_.rule, settings_.gate)) {}

  std::unique_ptr<State> prepare(const CacheView& prompt) const override {
    auto state = std::make_unique<EtaState>(settings_, prompt);
    append(*state, prompt);
    return state;
  }
  void append(State& state, const CacheView& grown) const override {
    if (!settings_.is_token_exact()) static_cast<EtaState&>(state).records.extend(grown.k);
  }

  Selection select(const StepView& view, const Scores& scores, State* state) const override;
  std::vector<float> block_thresholds(const StepView& view, const State* state,
                                      std::span<const float> bounds) const override;
  Bounds bounds(const Shape& shape) const override;

  const Implementation& implementation() const override { return *cost_; }

 private:
  bool uses_learned(const StepView& view) const {
    return settings_.source == Source::kLearned ||
           (settings_.source == Source::kAuto && has_learned(view.learned));
  }
  std::vector<float> own_bounds(const StepView& view, const Scores& scores,
                                const EtaState* state) const;
  HeadSelection take(const StepView& view, std::span<const float> scores,
                     std::span<const float> bounds, float threshold, float sink) const;
  void add_bounds(std::int64_t context, const Shape& shape, Bounds& bounds) const;

  Settings settings_;
  std::unique_ptr<Implementation> cost_;
};

std::vector<float> Eta::block_thresholds(const StepView& view, const State* state,
                                         std::span<const float> bounds) const {
  const auto* own = static_cast<const EtaState*>(state);
  std::vector<float> thresholds;
  if (settings_.source == Source::kUnion) {
    std::vector<float> of_records;  // as `select` would take them
    if (bounds.empty()) {
      const bool scores = settings_.is_token_exact();
      bounds = of_records = own_bounds(view, scores ? score(view, own) : Scores{}, own);
    }
    const auto blocks = static_cast<std::int64_t>(bounds.size()) / view.group;
    thresholds = union_thresholds(bounds, view.group, blocks, settings_.density);
  } else if (uses_learned(view)) {
    thresholds = learned_thresholds(view);
  } else if (own != nullptr && !own->constants.empty()) {
    thresholds = own->constants;
  } else {
    fail<RuntimeError>(
        "eta: the trace has {}no probe queries to calibrate thresholds by; "
        "thresholds=union does without",
        settings_.source == Source::kAuto ? "no learned thresholds and " : "");
  }
  for (float& threshold : thresholds) threshold -= settings_.shift;
  return thresholds;
}

/// A block of one token is bounded by its score.
std::vector<float> Eta::own_bounds(const StepView& view, const Scores& scores,
                                   const EtaState* state) const {
  if (settings_.is_token_exact()) return scores.values;
  if (state != nullptr && state->records.tokens() == view.rows()) {
    return state->records.bounds(view, settings_.z);
  }
  Records records(settings_.block, settings_.spread);  // a window begins its blocks anew
  records.extend(view.k);
  return records.bounds(view, settings_.z);
}

HeadSelection Eta::take(const StepView& view, std::span<const float> scores,
                        std::span<const float> bounds, float threshold, float sink) const {
  HeadSelection head;
  head.drawn_tiles = take_blocks(bounds, threshold, settings_.rule);
  for (const std::int64_t j : head.drawn_tiles) {
    head.v_rows.append(j * settings_.block, (j + 1) * settings_.block);
  }
  const std::int64_t rows = view.rows();
  const std::int64_t full = settings_.full_blocks(rows) * settings_.block;
  if (full < rows) head.v_rows.append(full, rows);
  head.k_rows = settings_.is_token_exact() ? RowRanges::all(rows) : head.v_rows;
  head.k_features = RowRanges::all(view.k.dim);
  head.draws = head.v_rows.size();
  if (head.v_rows.empty()) return head;
  std::vector<float> logits;
  for (const Range& range : head.v_rows.ranges()) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const float logit = scores[static_cast<std::size_t>(row)];
      // The current token bypasses the gate (eq. 3).
      logits.push_back(row + 1 == rows ? logit : gated_logit(logit, threshold, settings_.gate));
    }
  }
  Softmax softmax = softmax_weights(logits, sink);
  head.weights = std::move(softmax.weights);
  head.scale = softmax.inverse_sum;
  return head;
}

Selection Eta::select(const StepView& view, const Scores& scores, State* state) const {
  auto* own = static_cast<EtaState*>(state);
  Screening screening = scores.screening;
  if (screening.thresholds.empty()) {
    screening.bounds = own_bounds(view, scores, own);
    screening.thresholds = block_thresholds(view, own, screening.bounds);
  }
  if (own != nullptr) {
    own->learned = uses_learned(view);
    own->trained = has_learned(view.learned);
  }
  const auto full = static_cast<std::size_t>(settings_.full_blocks(view.rows()));
  const std::span<const float> bounds = screening.bounds;
  Selection selection;
  for (int g = 0; g < view.group; ++g) {
    const auto at = static_cast<std::size_t>(g);
    selection.heads.push_back(take(view, scores.head(g), bounds.subspan(at * full, full),
                                   screening.thresholds[at], sink_logit(view, g)));
  }
  selection.finish();
  if (!settings_.is_token_exact()) {
    const auto records = static_cast<double>(full);
    selection.statistics.state_bytes_read = records * static_cast<double>(record_bytes(view.k.dim));
    selection.statistics.routing_vectors = records * record_vectors(view.k.dim);
  }
  return selection;
}

/// Adds one sequence. Thresholds may take nothing or everything; those of a union take at least
/// what they are for, and at most what the last block of every head adds to it.
void Eta::add_bounds(std::int64_t context, const Shape& shape, Bounds& bounds) const {
  const std::int64_t full = settings_.full_blocks(context);
  const auto rest = static_cast<double>(context - full * settings_.block);
  const std::int64_t pinned = std::min<std::int64_t>(settings_.rule.pinned, full);
  const int rescued = may_rescue(full, settings_.rule) ? 1 : 0;
  const int group = shape.group();
  struct Blocks {
    std::int64_t head, group;
  };
  Blocks low{pinned + rescued, pinned + rescued};
  Blocks high{full, full};
  if (settings_.source == Source::kUnion && settings_.shift == 0 && full > 0) {
    const std::int64_t needed = std::max<std::int64_t>(1, union_blocks(full, settings_.density));
    low.head = std::max(low.head, (needed + group - 1) / group);
    low.group = std::max(low.group, needed);
    high.head = std::min(full, needed + pinned + rescued);
    high.group = std::min(full, needed + group - 1 + pinned + group * rescued);
  }
  const auto statistics = [&](const Blocks& blocks) {
    Statistics s;
    s.head_tiles = static_cast<double>(blocks.head) * shape.q_heads;
    s.group_tiles = static_cast<double>(blocks.group) * shape.kv_heads;
    s.v_requests = s.draws = s.head_tiles * settings_.block + rest * shape.q_heads;
    s.v_rows = s.group_tiles * settings_.block + rest * shape.kv_heads;
    s.k_requests = s.v_requests;
    s.k_rows = s.v_rows;
    if (settings_.is_token_exact()) {
      s.k_requests = static_cast<double>(context) * shape.q_heads;
      s.k_rows = static_cast<double>(context) * shape.kv_heads;
    } else {
      const double records = static_cast<double>(full) * shape.kv_heads;
      s.state_bytes_read = records * static_cast<double>(record_bytes(shape.head_dim));
      s.routing_vectors = records * record_vectors(shape.head_dim);
    }
    return s;
  };
  bounds.low += statistics(low);
  bounds.high += statistics(high);
}

Method::Bounds Eta::bounds(const Shape& shape) const {
  Bounds bounds{all_key_features(shape), all_key_features(shape)};
  for (const std::int64_t context : shape.contexts) add_bounds(context, shape, bounds);
  return bounds;
}

KVSIM_REGISTER_METHOD(
    "eta",
    MethodInfo{
        .summary = "blocks whose bound reaches the head's threshold, logits gated (biased)",
        .source = "Elastic Threshold Attention (arXiv 2609.20888)",
        .parameters =
            {{"block", "64", "tokens", "of a block, a power of two; 1: tokens by their scores"},
             {"chunk", "128", "blocks", "of a chunk; a head without any of the first is rescued"},
             {"shift", "0", "logits", "taken off all thresholds (offset a)"},
             {"z", "1.5", "deviations", "that a bound is above the centroid's logit"},
             {"pinned", "2", "blocks", "last full blocks that all heads take"},
             {"spread", "envelope", "envelope|flat",
              "envelope: largest of 4-token sub-blocks; flat: of the block"},
             {"gate", "multiplicative", "multiplicative|additive|none", "of logits in blocks"},
             {"rescue", "on", "on|off", "of a head without any block of chunk 1"},
             {"thresholds", "auto", "auto|learned|calibrated|union",
              "auto: learned, else calibrated; union: for a share of blocks"},
             {"density", "0.25", "share",
              "calibrated: of tokens that a head attends to; union: of blocks that a group loads"},
             {"implementation", "ours", "ours|published",
              "ours: one launch and an exchange; published: chunks and a reduction"}},
        .make = [](const Parameters& p) { return std::make_unique<Eta>(p); }});

}  // namespace
}  // namespace kvsim::eta
