#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "traces/trace.h"

namespace kvsim {

/// Exact attention of one query head at one step, in float64 from the stored values.
struct HeadAttention {
  int head = 0;  // query head
  std::int64_t step = 0;
  std::int64_t first_row = 0;       // > 0 where the layer has a window
  std::span<const double> weights;  // one per visible row, sum 1 over the rows
  double entropy_nats = 0;          // of `weights`
  double sink_share = 0;     // what sink_logits take away: true weights are (1 - this) * weights
  double largest_logit = 0;  // in magnitude, after scale and cap
};
using AttentionVisitor = std::function<void(const HeadAttention&)>;

/// Calls `visit` for all heads of a KV head's group at every one of `steps`: heads of a step in
/// order by one thread, different steps concurrently. `keys` holds all rows of the KV head; of
/// `layer` the queries, the sink logits and the attributes are used.
void visit_attention(const TraceLayer& layer, std::int64_t prompt_tokens, int kv_head,
                     const RowsView& keys, std::span<const std::int64_t> steps,
                     const AttentionVisitor& visit);

struct StatisticsOptions {
  std::int64_t sink_tokens = 4;      // the first tokens of the sequence
  std::int64_t window_tokens = 256;  // the last tokens, the current one included
  std::int64_t max_steps = 0;        // measure at most so many steps, evenly spread; 0 = all
};

/// Means over the measured steps.
struct HeadStatistics {
  double entropy_nats = 0;
  double top1_probability = 0;
  double sink_mass = 0;    // on the first sink_tokens
  double window_mass = 0;  // on the last window_tokens
};

struct LayerStatistics {
  std::vector<HeadStatistics> heads;  // [q_heads]
  HeadStatistics mean;                // over heads
  double sink_share = 0;              // mean share of sink_logits, 0 without
  double largest_logit = 0;           // magnitude, over heads and steps
  std::int64_t measured_steps = 0;
  std::optional<double> group_cosine;   // mean cosine of the queries of two heads of a group
  std::optional<double> group_overlap;  // mean of the sum of min(p, p') over neighbours in a group
  std::optional<double> drift;          // mean of 1 - cosine of a head's consecutive queries
};

/// Gathers the statistics of a layer KV head by KV head, so that one head's keys suffice at a time.
class StatisticsCollector {
 public:
  StatisticsCollector(const LayerInfo& layer, std::int64_t prompt_tokens, std::int64_t decode_steps,
                      const StatisticsOptions& options);
  /// `layer` as for visit_attention; the queries of this group must be there.
  void add(const TraceLayer& layer, int kv_head, const RowsView& keys);
  /// After all KV heads.
  LayerStatistics finish(const TraceLayer& layer) const;

 private:
  LayerInfo info_;
  std::int64_t prompt_tokens_;
  StatisticsOptions options_;
  std::vector<std::int64_t> steps_;
  std::vector<HeadStatistics> cells_;  // [q_heads, steps]
  std::vector<double> overlaps_;       // [q_heads, steps] with the head before; -1 = none
  std::vector<double> sink_shares_;    // [q_heads, steps]
  std::vector<double> logits_;         // [q_heads, steps]
};

/// Statistics of a layer in memory. Independent of the number of threads.
LayerStatistics attention_statistics(const TraceLayer& layer, std::int64_t prompt_tokens,
                                     const StatisticsOptions& options = {});

}  // namespace kvsim
