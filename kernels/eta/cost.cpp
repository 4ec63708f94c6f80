#include "kernels/eta/cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/eta/screening_cost.h"
#include "kernels/eta/sizes.h"
#include "kernels/split_plan.h"

namespace kvsim::eta {
namespace {

class Cost : public Implementation {
 public:
  Cost(bool published, int block, const BlockRule& rule, Gate gate)
      : published_(published), block_(block), rule_(rule), gate_(gate) {}

  Work work(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const override {
    return published_ ? published(shape, s, limits) : ours(shape, s, limits);
  }
  std::optional<Preparation> preparation(const Shape& shape, const DeviceLimits&) const override;

 private:
  Work ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const;
  Work published(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const;

  /// What screening and attention compute, however they are launched.
  void count(Stage& stage, const Shape& shape, const Statistics& s) const;
  void count_screening(Stage& stage, const Shape& shape, const Statistics& s) const;
  void count_gate(Stage& stage, double rows) const;
  std::int64_t full_blocks(std::int64_t context) const { return context / block_; }

  bool published_;
  int block_;
  BlockRule rule_;
  Gate gate_;
};

/// Eq. 7 in float32 (appendix F.2), hence not by matrix products. A root counts as an exponential,
/// since the same units do it.
void Cost::count_screening(Stage& stage, const Shape& shape, const Statistics& s) const {
  const double d = shape.head_dim;
  const double records = s.state_bytes_read / static_cast<double>(record_bytes(shape.head_dim));
  const double bounds = records * shape.group();
  const double heads = block_ > 1 ? query_heads(shape) : 0;  // their squares and norms
  stage.count(Op::kMultiply, Phase::kSelect, records * d + heads * d + bounds * (2 * d + 3));
  stage.count(Op::kAdd, Phase::kSelect, heads * (d - 1) + bounds * (2 * d - 1));
  stage.count(Op::kExp, Phase::kSelect, heads + bounds);
  // Which bound is smaller, whether a block passes, and what chunk 1 would rescue.
  double compares = bounds;
  for (const std::int64_t context : shape.contexts) {
    const std::int64_t full = full_blocks(context);
    const std::int64_t rescuable = may_rescue(full, rule_) ? std::min(full, rule_.chunk) : 0;
    compares += static_cast<double>(full + rescuable) * shape.q_heads;
  }
  stage.count(Op::kCompare, Phase::kSelect, compares);
}

/// S σ(β (S - τ)) or S + C (σ(β (S - τ)) - 1), of all rows: the current token's is not used.
void Cost::count_gate(Stage& stage, double rows) const {
  if (gate_ == Gate::kNone) return;
  stage.count(Op::kAdd, Phase::kSoftmax, (gate_ == Gate::kAdditive ? 4 : 2) * rows);
  stage.count(Op::kMultiply, Phase::kSoftmax, 3 * rows);
  stage.count(Op::kExp, Phase::kSoftmax, rows);
}

void Cost::count(Stage& stage, const Shape& shape, const Statistics& s) const {
  count_screening(stage, shape, s);
  count_scores(stage, shape, s.k_requests);
  count_gate(stage, s.v_requests);
  count_weighted_values(stage, shape, s.v_requests);
}

/// Rows as the kernel reads them, a block of a head together, the tail a part of one. Where a
/// latent row holds K and V, V's rows do not touch each other.
void read_blocks(Stage& stage, const Shape& shape, const Statistics& s, int block) {
  const double rows = shape.latent ? 1 : block;
  stage.read(Tensor::kK, rows * shape.k_row_bytes(), s.k_rows / rows, s.k_requests / rows,
             RowSet::kKRows);
  stage.read(Tensor::kV, rows * shape.v_row_bytes(), s.v_rows / rows, s.v_requests / rows,
             RowSet::kVRows);
}

/// One persistent launch (kernel.cu). Left out: rows of a rescued block that another CTA of the
/// team takes as well, which come from the cache the second time, and bounds that are computed
/// twice: operations are the method's. A warp's queries come from the SM's own cache if another
/// warp has read them.
Work Cost::ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const {
  const int ctas =
      ctas_per_sm(head_class(shape.head_dim), heads8_of(shape.group()), limits.shared_bytes_per_sm);
  const SplitPlan plan = plan_splits(shape, limits, kSplitUnit, /*own_ctas=*/true, ctas);
  const ScreeningCost screening(shape, limits, plan, block_, rule_);
  Work work;
  Stage& stage = work.add_stage("screen_attend", Boundary::kKernelLaunch);
  stage.launch = plan.launch;
  stage.imbalance = plan.imbalance;
  stage.read(Tensor::kQuery, shape.query_bytes(), 1, screening.query_reads());
  const auto record = static_cast<double>(record_bytes(shape.head_dim));
  const double records = s.state_bytes_read / record;
  if (records > 0) {
    stage.read(Tensor::kMetadata, record, records, records + screening.reread());
    screening.fill(stage, s.v_rows / (shape.total_context() * shape.kv_heads));
    read_blocks(stage, shape, s, block_);
  } else {  // tokens by their scores: no kernel does that
    stage.dependent_trips = 1;
    read_blocks(stage, shape, s, 1);
  }
  count(stage, shape, s);
  finish_output(work, shape, plan, {Boundary::kTeamExchange, exchanged_row_bytes(shape, true)});
  return work;
}

/// One launch (build_records.cu): K is read once, records are written. Of a key's spread only the
/// distance to the mean and a comparison count. What thresholds cost to find is left out.
std::optional<Preparation> Cost::preparation(const Shape& shape, const DeviceLimits&) const {
  if (block_ == 1) return std::nullopt;  // tokens by their scores: there are no records
  double blocks = 0;
  for (const std::int64_t context : shape.contexts) {
    blocks += static_cast<double>(full_blocks(context)) * shape.kv_heads;
  }
  const double keys = blocks * block_;
  const double d = shape.head_dim;
  Work work;
  Stage& stage = work.add_stage("build_records", Boundary::kKernelLaunch);
  stage.read(Tensor::kK, shape.k_row_bytes(), keys, keys);
  stage.count(Op::kMultiply, Phase::kSelect, keys * d);
  stage.count(Op::kAdd, Phase::kSelect, keys * (3 * d - 1));
  stage.count(Op::kCompare, Phase::kSelect, keys * (d + 1));
  stage.write(Tensor::kMetadata, static_cast<double>(record_bytes(shape.head_dim)), blocks);
  return Preparation{work, work, work};
}

/// One CTA to a sequence, KV head and chunk (algorithm 4). It takes its blocks in order and has
/// nothing of a block under way before it has been screened: a round for each record and one for
/// each block taken, K and V together. The code is not public. Assumed: CTAs of 128 threads with 64
/// registers each. Left out: the instructions between two loads.
Work Cost::published(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const {
  constexpr double kThreads = 128;
  constexpr double kCtasByRegisters = 65536 / (kThreads * 64);
  constexpr double kWarps = kThreads / 32;
  const auto chunk = static_cast<double>(rule_.chunk);
  double ctas = 0;
  double most_blocks = 0;
  for (const std::int64_t context : shape.contexts) {
    const auto full = static_cast<double>(full_blocks(context));
    ctas += shape.kv_heads * std::max(1.0, std::ceil(full / chunk));
    most_blocks = std::max(most_blocks, full);
  }
  const double by_threads = std::max(1.0, std::floor(limits.threads_per_sm / kThreads));
  SplitPlan plan;
  plan.launch = {ctas, std::min(by_threads, kCtasByRegisters) * limits.sms};
  plan.partials = most_blocks > chunk ? ctas : 0;  // a chunk each: no second launch
  const double waves = std::ceil(ctas / plan.launch.ctas_per_wave);
  Work work;
  Stage& stage = work.add_stage("screen_attend", Boundary::kKernelLaunch);
  stage.launch = plan.launch;
  stage.load_rounds = waves * (std::min(chunk, most_blocks) + s.group_tiles / ctas);
  stage.load_warps = kWarps * std::max(1.0, ctas / (waves * limits.sms));
  read_query(stage, shape);
  const auto record = static_cast<double>(record_bytes(shape.head_dim));
  const double records = s.state_bytes_read / record;
  if (records > 0) stage.read(Tensor::kMetadata, record, records, records);
  stage.read(Tensor::kK, shape.k_row_bytes(), s.k_rows, s.k_requests, RowSet::kKRows);
  stage.read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests, RowSet::kVRows);
  stage.dependent_trips = 1;  // a block's record, then its rows
  count(stage, shape, s);
  finish_output(work, shape, plan, {Boundary::kKernelLaunch, partial_row_bytes(shape)});
  return work;
}

}  // namespace

std::unique_ptr<Implementation> make_cost(bool published, int block, const BlockRule& rule,
                                          Gate gate) {
  return std::make_unique<Cost>(published, block, rule, gate);
}

}  // namespace kvsim::eta
