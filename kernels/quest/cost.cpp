#include "kernels/quest/cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/split_plan.h"
#include "kernels/topk/radix.h"

namespace kvsim::quest {
namespace {

/// Rounds of a radix select; ours has them on chip.
using device::kRounds;

/// Records that are one matrix product's rows: what a CTA of ours takes at once.
constexpr int kRecordsAtOnce = device::kUnitTokens;

/// Ours: a score that CTAs exchange, with the launch's number.
constexpr double kTaggedScoreBytes = 8;

// Of the released kernels, for elements of 16 bits and one query head to a KV head.
constexpr double kThreads = 128;             // of a CTA that estimates or attends
constexpr double kSharedBytes = 36864;       // of the same: two slots of K and V, row pointers
constexpr double kRowElements = 4 * 1024.0;  // that it loads at once, of K and of V each
constexpr double kSlots = 2;                 // loads under way
constexpr double kLeastChunk = 128;          // tokens of a CTA that attends
constexpr double kSelectThreads = 512;
constexpr double kSelectPasses = 3;  // two digits of a 16-bit score, and the last filter
constexpr double kPageNumberBytes = 4;

class Cost : public Implementation {
 public:
  Cost(bool published, const PageRule& rule) : published_(published), rule_(rule) {}

  Work work(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const override {
    return published_ ? published(shape, s, limits) : ours(shape, s, limits);
  }
  std::optional<Preparation> preparation(const Shape& shape, const DeviceLimits&) const override;

 private:
  Work ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const;
  Work published(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const;

  void estimate(Work& work, const Shape& shape, double records, const DeviceLimits& limits) const;
  void top_k(Work& work, const Shape& shape, double records, const DeviceLimits& limits) const;
  struct Chunks {
    SplitPlan plan;
    double rows = 0;  // of one
  };
  Chunks chunks(const Shape& shape, const DeviceLimits& limits) const;

  void read_pages(Stage& stage, const Shape& shape, const Statistics& s) const;
  double most_pages(const Shape& shape) const;
  double kept_pages(const Shape& shape) const;

  bool published_;
  PageRule rule_;
};

double record_size(const Shape& shape) { return static_cast<double>(record_bytes(shape.head_dim)); }

/// Σ max(q_i max_i, q_i min_i), as it is written.
void count_page_scores(Stage& stage, const Shape& shape, double scores) {
  stage.count(Op::kMultiply, Phase::kSelect, 2.0 * shape.head_dim * scores);
  stage.count(Op::kAdd, Phase::kSelect, (shape.head_dim - 1.0) * scores);
  stage.count(Op::kCompare, Phase::kSelect, 1.0 * shape.head_dim * scores);
}

void count_select(Stage& stage, double scores) {
  stage.count(Op::kCompare, Phase::kSelect, kRounds * scores);
  stage.count(Op::kAdd, Phase::kSelect, kRounds * scores);
}

void count_attention(Stage& stage, const Shape& shape, const Statistics& s) {
  count_scores(stage, shape, s.k_requests);
  count_weighted_values(stage, shape, s.v_requests);
}

/// The new token's key enters the last page's record. Left out: the record as it was, 4 d bytes,
/// and the row of K and V itself, which is written whatever the method.
void update_records(Stage& stage, const Shape& shape) {
  const double records = shape.batch() * shape.kv_heads;
  stage.write(Tensor::kMetadata, record_size(shape), records);
  stage.count(Op::kCompare, Phase::kSelect, 2.0 * shape.head_dim * records);
}

/// A page of a head together. Where a latent row holds K and V, V's rows do not touch each other.
void Cost::read_pages(Stage& stage, const Shape& shape, const Statistics& s) const {
  const double rows = shape.latent ? 1 : static_cast<double>(rule_.page);
  stage.read(Tensor::kK, rows * shape.k_row_bytes(), s.k_rows / rows, s.k_requests / rows,
             RowSet::kKRows);
  stage.read(Tensor::kV, rows * shape.v_row_bytes(), s.v_rows / rows, s.v_requests / rows,
             RowSet::kVRows);
}

/// Pages scored of the longest sequence.
double Cost::most_pages(const Shape& shape) const {
  std::int64_t most = 0;
  for (const std::int64_t context : shape.contexts) {
    most = std::max(most, plan_pages(context, rule_).scored);
  }
  return static_cast<double>(most);
}

/// Pages that heads chose, summed over heads.
double Cost::kept_pages(const Shape& shape) const {
  std::int64_t kept = 0;
  for (const std::int64_t context : shape.contexts) kept += plan_pages(context, rule_).kept;
  return static_cast<double>(kept) * shape.q_heads;
}

/// A plan; no kernel does it. One persistent launch: CTAs score their shares of the records, with
/// the heads of a group together, and exchange the scores; each then selects for all heads of its
/// team by itself, which spares the rounds' exchanges, and attends to an equal share of the team's
/// pages. Left out, as nobody knows them: the instructions in between. Operations are the method's,
/// not the repeated selections.
Work Cost::ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const {
  const SplitPlan plan =
      plan_splits(shape, limits, {kRecordsAtOnce * static_cast<int>(rule_.page), 1});
  const double records = s.state_bytes_read / record_size(shape);
  const double scores = records * shape.group();
  Work work;
  Stage& first = work.add_stage(records > 0 ? "score_pages" : "attend", Boundary::kKernelLaunch);
  first.launch = plan.launch;
  read_query(first, shape);
  update_records(first, shape);
  Stage* attend = &first;
  if (records > 0) {
    first.imbalance = plan.imbalance;
    first.read(Tensor::kMetadata, record_size(shape), records, records);
    count_page_scores(first, shape, scores);
    first.write(Tensor::kStash, kTaggedScoreBytes, plan.partials > 0 ? scores : 0);
    attend = &work.add_stage("select_attend", Boundary::kTeamExchange);
    attend->boundaries = plan.waits;
    attend->launch = plan.launch;
    if (plan.partials > 0) {
      const double readers = plan.team_units / plan.units;  // CTAs of a team
      attend->read(Tensor::kStash, kTaggedScoreBytes, scores, scores * readers);
      attend->cache_trips = 1;  // scores, then rows
    }
    count_select(*attend, scores);
  }
  const double pages = std::max(1.0, s.group_tiles);
  attend->imbalance = std::ceil(pages / plan.launch.ctas) * plan.launch.ctas / pages;
  read_pages(*attend, shape, s);
  count_attention(*attend, shape, s);
  finish_output(work, shape, plan, {Boundary::kTeamExchange, exchanged_row_bytes(shape, true)});
  return work;
}

/// One launch, planned: K is read once, records are written.
std::optional<Preparation> Cost::preparation(const Shape& shape, const DeviceLimits&) const {
  const double keys = shape.total_context() * shape.kv_heads;
  double pages = 0;
  for (const std::int64_t context : shape.contexts) {
    pages += static_cast<double>(plan_pages(context, rule_).pages) * shape.kv_heads;
  }
  Work work;
  Stage& stage = work.add_stage("build_records", Boundary::kKernelLaunch);
  stage.read(Tensor::kK, shape.k_row_bytes(), keys, keys, RowSet::kAll);
  stage.count(Op::kCompare, Phase::kSelect, 2.0 * shape.head_dim * keys);
  stage.write(Tensor::kMetadata, record_size(shape), pages);
  return Preparation{work, work, work};
}

/// CTAs of kThreads that fit into an SM; by shared memory and threads, registers are not known.
double resident(const DeviceLimits& limits) {
  const double by_shared = static_cast<double>(limits.shared_bytes_per_sm) /
                           (kSharedBytes + static_cast<double>(kSystemSharedBytes));
  return std::max(1.0, std::floor(std::min(by_shared, limits.threads_per_sm / kThreads)));
}

/// Rounds of loads of the CTA with the most `rows` of K and V (or of records), each of which must
/// have been used before the one after the next is loaded.
void load_in_rounds(Stage& stage, const Shape& shape, double rows, const DeviceLimits& limits) {
  const double waves = std::ceil(stage.launch.ctas / stage.launch.ctas_per_wave);
  const double loads = std::ceil(rows * shape.head_dim / kRowElements);
  stage.load_rounds = waves * std::ceil(loads / kSlots);
  const double ctas = std::max(1.0, stage.launch.ctas / (waves * limits.sms));  // of an SM
  stage.load_warps = kThreads / 32 * ctas;
}

/// One CTA to a query head and sequence goes through all its records.
void Cost::estimate(Work& work, const Shape& shape, double records,
                    const DeviceLimits& limits) const {
  const double scores = records * shape.group();
  Stage& stage = work.add_stage("estimate", Boundary::kKernelLaunch);
  stage.launch = {query_heads(shape), resident(limits) * limits.sms};
  load_in_rounds(stage, shape, most_pages(shape), limits);
  read_query(stage, shape);
  stage.read(Tensor::kMetadata, record_size(shape), records, scores);
  stage.write(Tensor::kStash, shape.activation_bytes, scores);
  count_page_scores(stage, shape, scores);
}

/// RAFT's radix select, one CTA to a query head and sequence.
void Cost::top_k(Work& work, const Shape& shape, double records, const DeviceLimits& limits) const {
  const double scores = records * shape.group();
  Stage& stage = work.add_stage("top_k", Boundary::kKernelLaunch);
  const double by_threads = std::floor(limits.threads_per_sm / kSelectThreads);
  stage.launch = {query_heads(shape), std::max(1.0, by_threads) * limits.sms};
  stage.read(Tensor::kStash, shape.activation_bytes, scores, kSelectPasses * scores);
  stage.write(Tensor::kStash, kPageNumberBytes + shape.activation_bytes, kept_pages(shape));
  count_select(stage, scores);
}

/// Chunks of whole pages, the fewest pages for which CTAs do not exceed one wave; the last page is
/// a chunk of its own. The released code knows one sequence; here each is cut alike.
Cost::Chunks Cost::chunks(const Shape& shape, const DeviceLimits& limits) const {
  const double per_wave = resident(limits) * limits.sms;
  double pages = 0;
  for (const std::int64_t context : shape.contexts) {
    pages += static_cast<double>(plan_pages(context, rule_).taken() - 1);
  }
  const auto page = static_cast<double>(rule_.page);
  const double chunk =
      std::max({1.0, std::floor(kLeastChunk / page), std::ceil(pages * shape.q_heads / per_wave)});
  double ctas = 0;
  double merged = 0;
  for (const std::int64_t context : shape.contexts) {
    const auto others = static_cast<double>(plan_pages(context, rule_).taken() - 1);
    const double own = std::ceil(others / chunk) + 1;
    ctas += own;
    merged += own > 1 ? own : 0;
  }
  Chunks result;
  result.plan.launch = {ctas * shape.q_heads, per_wave};
  result.plan.partials = merged * shape.kv_heads;
  result.rows = chunk * page;
  return result;
}

/// The released kernels know one query head to a KV head. With groups each head is taken to load
/// its own records and pages; what several heads load comes from memory once.
Work Cost::published(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const {
  const double records = s.state_bytes_read / record_size(shape);
  Work work;
  Stage& append = work.add_stage("append", Boundary::kKernelLaunch);
  append.launch = {shape.batch(), static_cast<double>(limits.sms)};
  update_records(append, shape);
  if (records > 0) {
    estimate(work, shape, records, limits);
    top_k(work, shape, records, limits);
  }
  const auto [plan, rows_of_chunk] = chunks(shape, limits);
  Stage& attend = work.add_stage("attend", Boundary::kKernelLaunch);
  attend.launch = plan.launch;
  attend.dependent_trips = 1;  // page numbers, then rows
  load_in_rounds(attend, shape, rows_of_chunk, limits);
  read_query(attend, shape);
  if (records > 0)
    attend.read(Tensor::kStash, kPageNumberBytes, kept_pages(shape), kept_pages(shape));
  read_pages(attend, shape, s);
  count_attention(attend, shape, s);
  // The output in 16 bits, and the logarithm of the sum.
  const double partial = 1.0 * shape.activation_bytes * shape.v_head_dim + 4;
  finish_output(work, shape, plan, {Boundary::kKernelLaunch, partial});
  return work;
}

}  // namespace

std::unique_ptr<Implementation> make_cost(bool published, const PageRule& rule) {
  return std::make_unique<Cost>(published, rule);
}

}  // namespace kvsim::quest
