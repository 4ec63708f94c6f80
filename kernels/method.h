#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/philox.h"
#include "core/registry.h"
#include "kernels/implementation.h"
#include "kernels/parameters.h"
#include "kernels/row_ranges.h"
#include "kernels/statistics.h"
#include "traces/rows_view.h"
#include "traces/trace.h"

namespace kvsim {

/// One KV head's cache when decoding starts (prompt rows only) or grows.
struct CacheView {
  RowsView k;
  RowsView v;
  std::vector<RowsView> probes = {};  // [group] of [n, head_dim]: each head's last n prompt queries
  float scale = 1;                    // as in StepView
  float logit_cap = 0;
  const PreparedStates* prepared = nullptr;  // kept with the trace's layer; null: none
  int kv_head = 0;                           // whose arrays of these are meant
};

/// One KV head and the query heads that share it, at one decode step. Rows are the tokens the step
/// may see, oldest first; the last one is the current token.
struct StepView {
  RowsView k;                      // [rows, head_dim]
  RowsView v;                      // [rows, v_head_dim]
  std::span<const float> queries;  // [group, head_dim], after RoPE, not scaled
  int group = 1;
  float scale = 1;                     // logits = scale * q.k
  float logit_cap = 0;                 // 0 = none
  std::span<const float> sink_logits;  // [group] or empty: mass that belongs to no row
  std::int64_t prompt_tokens = 0;      // fixes what must not change in mid-trace (tile widths)
  RandomStream random;                 // of the group's first query head
  RowsView layer_queries = {};         // [q_heads, head_dim], of the whole layer; may be unknown
  const LearnedParameters* learned = nullptr;  // of the layer; null: none

  std::int64_t rows() const { return k.rows; }
  std::span<const float> query(int head) const {
    return queries.subspan(static_cast<std::size_t>(head * k.dim), static_cast<std::size_t>(k.dim));
  }
  RandomStream random_of(int head, Purpose purpose) const {
    RandomStream stream = random;
    stream.head += static_cast<std::uint32_t>(head);
    stream.purpose = purpose;
    return stream;
  }
};

/// What a method that screens blocks of keys decides by.
struct Screening {
  std::vector<float> bounds;      // [group, blocks]: of the logits of a block's keys
  std::vector<float> thresholds;  // [group]; empty: not screened yet
};

/// Logits of a group, after scale and cap: [group, rows].
struct Scores {
  std::int64_t rows = 0;
  std::vector<float> values;
  Screening screening = {};  // a kernel's own, or the caller leaves it to `select`

  std::span<const float> head(int g) const {
    return {values.data() + g * rows, static_cast<std::size_t>(rows)};
  }
  std::span<float> head(int g) {
    return {values.data() + g * rows, static_cast<std::size_t>(rows)};
  }
};

/// What one query head reads and how it weighs it: output = scale * Σ weights[i] * V[i-th row].
struct HeadSelection {
  RowRanges k_rows;
  RowRanges k_features;  // features of these rows that are read
  RowRanges v_rows;
  std::vector<float> weights;         // one per row of v_rows, ascending
  std::vector<std::uint32_t> counts;  // how often samplers drew each of these rows; else empty
  float scale = 1;
  std::int64_t draws = 0;                     // Σ counts for samplers, else the rows of v_rows
  std::vector<std::uint32_t> feature_counts;  // how often each of k_features was drawn; else empty
  std::int64_t query_hits = 0;                // Σ of these
  std::vector<std::int32_t> drawn_tiles;      // tiles that received a budget, ascending
};

/// What a group reads in one step; the unions are what memory traffic counts.
struct Selection {
  std::vector<HeadSelection> heads;
  RowRanges k_rows;
  RowRanges k_features;
  RowRanges v_rows;
  Statistics statistics;

  /// Fills the unions and the statistics from the heads.
  void finish();
};

/// What a method keeps between steps for one KV head (block records, teams, accumulated weights).
class State {
 public:
  virtual ~State() = default;
  virtual std::int64_t bytes() const = 0;
  /// What a reader of results must know of how it came about; empty: nothing.
  virtual std::string note() const { return {}; }
};

/// What is computed. Life cycle, per KV head: `prepare` once on the prompt's rows; then for every
/// step `append` with the grown cache, `score`, `select`, `attend`. A method without state keeps
/// the defaults of the first two. Methods are immutable and shared between threads; what changes is
/// in State. Scores may also come from elsewhere (a kernel's own, Bernoulli): `select` takes any.
class Method {
 public:
  virtual ~Method() = default;

  virtual std::unique_ptr<State> prepare(const CacheView&) const { return nullptr; }
  virtual void append(State&, const CacheView&) const {}

  /// True when `score` is the exact dense scoring, which a replay then computes once for all.
  virtual bool scores_exactly() const { return true; }
  virtual Scores score(const StepView& view, const State* state) const;
  virtual Selection select(const StepView& view, const Scores& scores, State* state) const = 0;
  /// For a method that screens blocks: the thresholds of the group's heads, from a step's queries,
  /// the state, or the bounds of `select`'s own scoring or a kernel's, [group, blocks].
  virtual std::vector<float> block_thresholds(const StepView&, const State*,
                                              std::span<const float> /*bounds*/) const {
    return {};
  }
  /// For a method that draws rows by a proposal: ln of the chance that the proposal gives to each
  /// of the first rows, for one head. Empty: there is none. For studies; `select` does not ask.
  virtual std::vector<double> log_proposal(const StepView&, int /*head*/, const Scores& /*scores*/,
                                           const State*) const {
    return {};
  }
  /// [group, v_head_dim]. The default weighs the selected V rows; a head without rows returns
  /// zeros.
  virtual std::vector<float> attend(const StepView& view, const Selection& selection) const;

  /// The least and the most a step can read, where no trace tells (Σ over batch and heads).
  struct Bounds {
    Statistics low;
    Statistics high;
  };
  virtual Bounds bounds(const Shape& shape) const = 0;

  virtual const Implementation& implementation() const = 0;
};

/// For bounds: the features of K in every query head and group of the batch, all read.
Statistics all_key_features(const Shape& shape);

/// What `kvsim list methods` shows, and how a method is made from its parameters.
struct MethodInfo {
  std::string summary;
  std::string source;  // paper or repository
  std::vector<Parameter> parameters;
  std::function<std::unique_ptr<Method>(const Parameters&)> make;
  bool hidden = false;  // the skeleton, for tests and docs
};

Registry<MethodInfo>& method_registry();

/// Parses `name:key=value,…`, checks it and makes the method. Throws UsageError.
struct NamedMethod {
  std::string name;
  Parameters parameters;
  std::unique_ptr<Method> method;
};
NamedMethod make_method(std::string_view text);

}  // namespace kvsim

/// Registers a method from the file it is defined in: KVSIM_REGISTER_METHOD("name", MethodInfo{…}).
#define KVSIM_REGISTER_METHOD(name, ...)                                         \
  [[maybe_unused]] static const bool KVSIM_CONCAT(kvsim_registered_, __LINE__) = \
      ::kvsim::method_registry().add(name, __VA_ARGS__)
