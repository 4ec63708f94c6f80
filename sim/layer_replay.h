#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/measure/gpu_layer.h"
#include "kernels/method.h"
#include "sim/bias.h"
#include "sim/cost.h"
#include "sim/head_figures.h"
#include "traces/trace.h"

namespace kvsim {

/// One KV head of one step under one method and seed.
struct GroupFigures {
  std::vector<HeadFigures> heads;  // [group]
  RowRanges k_rows;                // unions, counted from the first row the step sees
  RowRanges k_features;
  RowRanges v_rows;
  Statistics statistics;
};

/// What is replayed of a layer, apart from the layer itself.
struct LayerJob {
  std::string trace;  // named in messages
  std::int64_t prompt_tokens = 0;
  std::uint32_t sequence = 0;  // index of the trace: independent random numbers
  std::uint64_t seed = 0;      // of the first repeat
  int repeats = 1;
  std::vector<std::int64_t> steps;  // ascending
  std::span<const NamedMethod> methods;
};

/// The rows of the cache a step sees: all before it and its own, or the last `window`.
Range visible_rows(const LayerInfo& info, std::int64_t prompt_tokens, std::int64_t step);
/// What fixes a trace's tile rule: the prompt, as far as a window sees it.
std::int64_t visible_prompt(const LayerInfo& info, std::int64_t prompt_tokens);
HeadShape head_shape(const LayerInfo& info);
void add_distinct(const std::string& note, std::vector<std::string>& notes);

/// Replays one layer: every method, repeat, step and KV head. Results lie in slots of their own, so
/// they do not depend on the number of threads.
class LayerReplay {
 public:
  /// `done(n)` is called from any thread when n (step, KV head) pairs are finished. With `gpu`, the
  /// layer on the GPU, outputs and selections are those of the methods' kernels. Errors of all
  /// repeats are added to `errors`, if given.
  LayerReplay(const LayerJob& job, const TraceLayer& layer, int threads,
              const std::function<void(std::int64_t)>& done, GpuLayer* gpu = nullptr,
              ErrorSums* errors = nullptr);

  /// [kv_heads] of one method, repeat and step (an index into job.steps).
  std::span<const GroupFigures> groups(std::size_t method, std::size_t repeat,
                                       std::size_t step) const;
  /// What the method keeps after the last step, Σ over KV heads; 0 without state.
  std::int64_t state_bytes(std::size_t method) const { return state_bytes_[method]; }
  /// What the method's states say of themselves after the last step, each text once.
  std::vector<std::string> notes(std::size_t method) const;
  /// What the launches on the GPU were given.
  const StepThresholds& thresholds() const { return thresholds_; }

 private:
  using States = std::vector<std::unique_ptr<State>>;  // [methods, repeats]; on the GPU [methods]
  /// A KV head at a step: what all methods and repeats share.
  struct GroupStep;
  /// Of one KV head under one method.
  struct Place {
    std::size_t method = 0;
    std::size_t repeat = 0;
    std::size_t step = 0;  // an index into job.steps
    int kv_head = 0;
  };

  StepView view(std::int64_t step, int kv_head, std::span<const float> group_queries) const;
  std::vector<float> queries(std::int64_t step, int kv_head) const;  // [group, head_dim]
  States prepare(int kv_head, std::size_t repeats) const;
  void append(const States& states, const CacheView& grown) const;
  std::string where(std::int64_t step, int kv_head) const;
  void replay_on_cpu(int threads, const std::function<void(std::int64_t)>& done);
  void replay_group(std::size_t step, int kv_head, States& states);
  void replay_on_gpu(GpuLayer& gpu, int threads, const std::function<void(std::int64_t)>& done);
  void keep_on_gpu(GpuLayer& gpu, const std::vector<States>& states) const;
  void grow_others(States& states, std::int64_t step, int kv_head) const;
  /// Of all launches, while states go through the steps up to the last one.
  void find_thresholds(std::vector<States>& states, int threads);
  GpuLaunch launch(std::size_t method, std::size_t repeat, std::size_t step) const;
  void keep_launch(const GroupStep& group, const GpuOutput& output, const Place& place,
                   State* state);
  void keep(const GroupStep& group, Selection selection, std::span<const float> outputs,
            const Place& place);
  /// How far from the attention it draws, where it draws by a proposal.
  void keep_divergence(const GroupStep& group, const Scores& exact, const State* state,
                       const Place& place);
  /// A step that is not replayed still goes through the states, which learn from every selection.
  void pass_step(std::int64_t token_step, int kv_head, States& states) const;
  void replay_head_in_order(int kv_head, States states,
                            const std::function<void(std::int64_t)>& done);
  void keep_states(int kv_head, const States& states, std::size_t repeats);
  std::size_t slot_index(std::size_t method, std::size_t repeat, std::size_t step) const;

  const LayerJob& job_;
  const TraceLayer& layer_;
  ErrorSums* errors_;
  std::size_t repeats_;
  std::size_t kv_heads_;
  bool any_scores_exactly_ = false;
  std::vector<GroupFigures> slots_;        // [methods, repeats, steps, kv_heads]
  std::vector<std::int64_t> state_bytes_;  // [methods]
  StepThresholds thresholds_;              // of the launches on the GPU
  std::vector<std::string> notes_;         // [kv_heads, methods, repeats]
};

}  // namespace kvsim
