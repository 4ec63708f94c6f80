#include <cmath>
#include <numeric>

#include "kernels/measure/oracle.cuh"
#include "kernels/measure/selection.h"
#include "kernels/measure/subject.cuh"

namespace kvsim {
namespace {

/// Dumps above this many rows times heads are not taken: they are for the CPU to go through.
constexpr std::int64_t kMostDumped = std::int64_t{1} << 27;

std::int64_t dumped_rows(const MeasureCase& shape) {
  return static_cast<std::int64_t>(shape.contexts.size()) * shape.q_heads * shape.max_context();
}

/// The first sequences of a case, as many as dumps have room for.
MeasureCase first_sequences(const MeasureCase& shape) {
  const std::int64_t room = kMostDumped / (std::int64_t{shape.q_heads} * shape.max_context());
  MeasureCase part = shape;
  part.contexts.resize(static_cast<std::size_t>(std::max<std::int64_t>(1, room)));
  return part;
}

/// The counts of a sampler as weights of its output: count / Σ counts of the head.
std::vector<double> weights_from(std::span<const std::uint32_t> counts, std::int64_t stride) {
  std::vector<double> weights(counts.begin(), counts.end());
  for (std::size_t begin = 0; begin < weights.size(); begin += static_cast<std::size_t>(stride)) {
    const auto head = std::span(weights).subspan(begin, static_cast<std::size_t>(stride));
    const double sum = std::accumulate(head.begin(), head.end(), 0.0);
    for (double& weight : head) weight = sum > 0 ? weight / sum : 0;
  }
  return weights;
}

}  // namespace

Shape shape_of(const MeasureCase& shape, std::span<const std::int64_t> contexts) {
  Shape result;
  result.contexts = contexts;
  result.q_heads = shape.q_heads;
  result.kv_heads = shape.kv_heads;
  result.head_dim = result.v_head_dim = shape.head_dim;
  result.prompt_tokens = shape.prompt_tokens();
  return result;
}

Subject::Subject(const std::string& spec, KvCopies& copies, const MeasureCase& shape,
                 const DeviceLimits& limits, const Stream& stream)
    : spec_(spec), method_(make_method(spec)), limits_(limits) {
  kernel_ = kernel_registry().at(method_.name).make(method_.parameters);
  const DeviceStep& step = copies.step(0);
  const std::string refusal = kernel_->refusal(step, limits);
  if (!refusal.empty() && shape.traced) {
    fail<RuntimeError>("{}: layer {}: {}: {}", shape.traced->trace, shape.traced->layer->info.layer,
                       spec, refusal);
  }
  if (!refusal.empty()) fail<UsageError>("{}: {}", spec, refusal);
  if (kernel_->wants_features()) copies.add_feature_copies(stream.get());
  clear_workspace(step);
  if (kernel_->wants_states()) keep_states(copies, shape, stream);
  if (kernel_->screened_block() == 0) return;
  const ThresholdSource source(*method_.method, shape.traced ? &*shape.traced : nullptr);
  for (int i = 0; i < copies.copies(); ++i) {
    screenings_.emplace_back(source, *kernel_, limits_, copies.step(i), workspace_.data(),
                             stream.get());
  }
}

void Subject::clear_workspace(const DeviceStep& step) {
  const std::size_t bytes = std::max<std::size_t>(kernel_->workspace_bytes(step, limits_), 1);
  if (bytes > workspace_.size()) workspace_ = DeviceBuffer<std::byte>(bytes);
  workspace_.fill_bytes(0);
}

void Subject::keep_states(const KvCopies& copies, const MeasureCase& shape, const Stream& stream) {
  const TracedStep* traced = shape.traced ? &*shape.traced : nullptr;
  if (traced != nullptr && traced->rows.begin > 0) {
    fail<RuntimeError>("{}: layer {}: {}: a layer with a window, where nothing is drawn",
                       traced->trace, traced->layer->info.layer, spec_);
  }
  for (int i = 0; i < copies.copies(); ++i) {
    kept_.emplace_back(*method_.method, *kernel_, copies.step(i), traced, stream.get());
  }
}

/// What the rule needs of copy 0 beside a step's queries.
HostInputs Subject::host_inputs() const {
  HostInputs inputs;
  if (!kept_.empty()) inputs.states = kept_.front().states();
  return inputs;
}

ScreeningDump Subject::screening_dump(std::span<const float> bounds, std::int64_t stride) const {
  if (bounds.empty()) return {};
  return {bounds, screenings_.empty() ? std::span<const float>() : screenings_.front().thresholds(),
          kernel_->screened_block(), stride};
}

/// The statistics of a launch on all sequences, from bounds alone.
Statistics Subject::statistics_of_bounds(const KvCopies& copies, const Stream& stream) const {
  DeviceStep step = step_of(copies, 0);
  const BoundDump dump(*kernel_, step);
  kernel_->launch(step, limits_, workspace_.data(), stream.get());
  stream.synchronize();
  const std::vector<float> bounds = dump.download();
  return screened_statistics(*method_.method, step, screening_dump(bounds, step.bound_stride),
                             host_inputs());
}

DeviceStep Subject::step_of(const KvCopies& copies, int copy) const {
  DeviceStep step = copies.step(copy);
  if (!screenings_.empty()) screenings_[static_cast<std::size_t>(copy)].attach(step);
  if (!kept_.empty()) kept_[static_cast<std::size_t>(copy)].attach(step);
  return step;
}

void Subject::enqueue(const KvCopies& copies, int copy, cudaStream_t stream) const {
  kernel_->launch(step_of(copies, copy), limits_, workspace_.data(), stream);
}

std::vector<std::byte> Subject::run_plain(KvCopies& copies, const Stream& stream) const {
  copies.poison_output(0);
  enqueue(copies, 0, stream.get());
  stream.synchronize();
  return copies.output(0);
}

Subject::HostDumps Subject::run_with_dumps(const KvCopies& copies, const MeasureCase& shape,
                                           const Stream& stream) const {
  HostDumps dumps;
  DeviceStep step = step_of(copies, 0);
  step.batch = static_cast<int>(shape.contexts.size());
  const std::int64_t size = dumped_rows(shape);
  if (size > kMostDumped) {
    enqueue(copies, 0, stream.get());
    stream.synchronize();
    return dumps;
  }
  DeviceBuffer<float> scores(static_cast<std::size_t>(size));
  DeviceBuffer<std::uint32_t> counts(static_cast<std::size_t>(size));
  DeviceBuffer<std::uint32_t> features(
      kernel_->wants_features()
          ? shape.contexts.size() * static_cast<std::size_t>(shape.q_heads * shape.head_dim)
          : 0);
  scores.fill_bytes(0xFF);
  counts.fill_bytes(0);
  features.fill_bytes(0);
  check_cuda(cudaDeviceSynchronize(), "poisoning dumps");
  step.scores = scores.data();
  step.counts = counts.data();
  if (features.size() > 0) step.feature_counts = features.data();
  step.dump_stride = shape.max_context();
  const BoundDump bounds(*kernel_, step);
  kernel_->launch(step, limits_, workspace_.data(), stream.get());
  stream.synchronize();
  dumps.bounds = bounds.download();
  dumps.bound_stride = step.bound_stride;
  dumps.scores.resize(scores.size());
  dumps.counts.resize(counts.size());
  dumps.feature_counts.resize(features.size());
  scores.download(dumps.scores);
  counts.download(dumps.counts);
  features.download(dumps.feature_counts);
  if (dumps.bounds.empty() && std::isnan(dumps.scores.front())) dumps.scores.clear();
  dumps.draws = std::accumulate(dumps.counts.begin(), dumps.counts.end(), std::int64_t{0});
  return dumps;
}

std::vector<double> Subject::weights_of(const DeviceStep& step, const MeasureCase& shape,
                                        const HostDumps& dumps, MethodTimes& times) const {
  const std::vector<std::int64_t> contexts(shape.contexts.begin(), shape.contexts.end());
  const Method::Bounds bounds = method_.method->bounds(shape_of(shape, contexts));
  times.statistics = bounds.high;
  times.statistics_measured = bounds.low == bounds.high;
  const auto rows = std::accumulate(contexts.begin(), contexts.end(), std::int64_t{0});
  times.k_bytes = times.statistics.k_rows * shape.row_bytes();
  // Top-k of one head a group reads a known number of rows, but not known rows.
  const bool selects = bounds.low.v_requests < static_cast<double>(rows * shape.q_heads) ||
                       !method_.method->scores_exactly() || !screenings_.empty() || !kept_.empty();
  DeviceStep dumped = step;
  dumped.dump_stride = shape.max_context();
  std::vector<double> weights;
  if (selects && !dumps.scores.empty()) {
    const std::span<const float> sinks =
        shape.traced ? std::span<const float>(shape.traced->layer->sink_logits)
                     : std::span<const float>();
    const std::vector<float> queries = host_queries(step);
    HostInputs inputs = host_inputs();
    inputs.sink_logits = sinks;
    inputs.queries = queries;
    DumpedSelection selection = select_from_dump(*method_.method, dumped,
                                                 {dumps.scores, dumps.counts, dumps.feature_counts,
                                                  screening_dump(dumps.bounds, dumps.bound_stride)},
                                                 inputs);
    times.statistics = selection.statistics;
    times.statistics_measured = true;
    times.k_bytes = kernel_->wants_features() ? 2 * selection.key_elements
                                              : times.statistics.k_rows * shape.row_bytes();
    if (dumps.draws > 0 || !dumps.feature_counts.empty()) {
      times.selection_differences = selection.differences;
    }
    weights = std::move(selection.weights);
  }
  // What the kernel says it drew is what its output must be of, right or wrong.
  const bool right = !weights.empty() && times.selection_differences == 0;
  if (selects && dumps.draws > 0 && !right)
    weights = weights_from(dumps.counts, dumped.dump_stride);
  if (selects && weights.empty()) {
    fail<RuntimeError>(
        "{}: its kernel dumps neither scores nor counts, or there are over {} of them", spec_,
        kMostDumped);
  }
  return weights;
}

void Subject::check(KvCopies& copies, const MeasureCase& shape, const Stream& stream,
                    MethodTimes& times) {
  first_output_ = run_plain(copies, stream);  // first, so that a profiler finds it first
  const bool partly = kernel_->bound_stride(copies.step(0)) > 0 && dumped_rows(shape) > kMostDumped;
  const MeasureCase checked = partly ? first_sequences(shape) : shape;
  DeviceStep step = step_of(copies, 0);
  step.batch = static_cast<int>(checked.contexts.size());
  step.dump_stride = checked.max_context();
  if (partly) clear_workspace(step);  // fewer sequences may take more: each has more CTAs
  copies.poison_output(0);
  const HostDumps dumps = run_with_dumps(copies, checked, stream);
  if (partly) clear_workspace(copies.step(0));
  times.repeatable = partly || copies.output(0) == first_output_;
  check_again(copies, stream, times);
  const std::vector<double> weights = weights_of(step, checked, dumps, times);
  times.relative_l2 =
      relative_l2(first_output_, step.type, float64_output(step, weights, stream.get()));
  if (partly) {
    times.statistics = statistics_of_bounds(copies, stream);
    times.k_bytes = times.statistics.k_rows * shape.row_bytes();
  }
  const Statistics& rows = times.statistics;
  times.floor_bytes = times.k_bytes + rows.v_rows * shape.row_bytes() + rows.state_bytes_read;
}

void Subject::check_again(KvCopies& copies, const Stream& stream, MethodTimes& times) const {
  times.repeatable = times.repeatable && run_plain(copies, stream) == first_output_;
}

}  // namespace kvsim
