#include "tests/kernels/gpu/gpu_case.cuh"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/bernoulli/scoring.h"
#include "kernels/measure/kept_states.cuh"
#include "kernels/measure/oracle.cuh"
#include "kernels/measure/screening.cuh"
#include "kernels/measure/selection.h"
#include "tests/kernels/gpu/team_corrections.h"

namespace kvsim::testing {
namespace {

constexpr std::int64_t kMargin = 5;  // rows of the dumps behind the longest sequence

std::vector<float> some_sink_logits(int q_heads) {
  std::vector<float> logits;
  for (int h = 0; h < q_heads; ++h) logits.push_back(static_cast<float>(h % 7) - 2.5f);
  return logits;
}

/// One method on one case: everything that a launch reads and writes.
class CaseRun {
 public:
  CaseRun(const NamedMethod& method, const GpuCase& gpu_case, const DeviceLimits& limits)
      : method_(method),
        limits_(limits),
        kernel_(kernel_registry().at(method.name).make(method.parameters)),
        copies_(gpu_case.shape, 42, 1, stream_.get()),
        step_(copies_.step(0)) {
    if (kernel_->wants_features()) {
      copies_.add_feature_copies(stream_.get());
      step_ = copies_.step(0);
    }
    if (gpu_case.loud_rows.end > 0) make_loud(gpu_case.loud_rows);
    step_.logit_cap = gpu_case.logit_cap;
    step_.random.layer = 3;
    step_.prompt_tokens -= gpu_case.suffix;
    step_.output_type = gpu_case.output;
    if (gpu_case.sinks) {
      host_sinks_ = some_sink_logits(step_.q_heads);
      sinks_ = DeviceBuffer<float>(host_sinks_.size());
      sinks_.upload(host_sinks_);
      step_.sink_logits = sinks_.data();
    }
    const auto heads = static_cast<std::size_t>(step_.batch * step_.q_heads);
    output_ = DeviceBuffer<std::byte>(
        heads * static_cast<std::size_t>(step_.head_dim * bytes_of(gpu_case.output)));
    step_.output = output_.data();
    step_.dump_stride = gpu_case.shape.max_context() + kMargin;
    dumped_ = heads * static_cast<std::size_t>(step_.dump_stride);
  }

  std::string refusal() const { return kernel_->refusal(step_, limits_); }

  CaseResult run(int repeats) {
    workspace_ =
        DeviceBuffer<std::byte>(std::max<std::size_t>(kernel_->workspace_bytes(step_, limits_), 1));
    workspace_.fill_bytes(0);
    if (kernel_->screened_block() > 0) {
      screening_ = PreparedScreening(ThresholdSource(*method_.method), *kernel_, limits_, step_,
                                     workspace_.data(), stream_.get());
      screening_.attach(step_);
    }
    if (kernel_->wants_states()) {
      kept_ = KeptStates(*method_.method, *kernel_, step_, nullptr, stream_.get());
      kept_.attach(step_);
    }
    CaseResult result;
    const std::vector<std::byte> first = launch_with_dumps();
    compare_scores(result);
    result.draws = std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
    std::vector<double> weights;  // empty: softmax over all rows
    if (result.draws > 0 || kernel_->wants_features() || !bounds_.empty()) {
      const std::vector<float> queries = host_queries(step_);
      DumpedSelection selection = select_from_dump(
          *method_.method, step_, {scores_, counts_, feature_counts_, screening_dump()},
          {host_sinks_, queries, kept_.states()});
      result.differences = selection.differences;
      if (kernel_->wants_states()) {
        result.differences +=
            different_corrections(method_, step_, kept_.states(), screening_dump());
      }
      weights = std::move(selection.weights);
    }
    result.relative_l2 =
        relative_l2(first, step_.output_type, float64_output(step_, weights, stream_.get()));
    for (int i = 0; i < repeats; ++i) result.different_launches += launch(step_) != first;
    return result;
  }

 private:
  void make_loud(const Range& rows) const {
    constexpr float kLoud = 16;
    const std::int64_t count = (rows.end - rows.begin) * step_.head_dim;
    std::vector<std::byte> stored(static_cast<std::size_t>(2 * count));
    std::vector<float> values(static_cast<std::size_t>(count));
    for (int head = 0; head < step_.batch * step_.kv_heads; ++head) {
      auto* first = static_cast<std::byte*>(const_cast<void*>(step_.k.data)) +
                    2 * (head * step_.k.head_stride + rows.begin * step_.head_dim);
      check_cuda(cudaMemcpy(stored.data(), first, stored.size(), cudaMemcpyDeviceToHost), "keys");
      const RowsView view{stored.data(), step_.type, rows.end - rows.begin, step_.head_dim,
                          step_.head_dim};
      load_rows(view, 0, view.rows, view.dim, values.data());
      for (float& value : values) value *= kLoud;
      store_values(values.data(), count, step_.type, stored.data());
      check_cuda(cudaMemcpy(first, stored.data(), stored.size(), cudaMemcpyHostToDevice), "keys");
    }
  }

  std::vector<std::byte> launch(const DeviceStep& step) {
    output_.fill_bytes(0xFF);
    check_cuda(cudaDeviceSynchronize(), "poisoning an output");  // was on another stream
    kernel_->launch(step, limits_, workspace_.data(), stream_.get());
    stream_.synchronize();
    std::vector<std::byte> bytes(output_.size());
    output_.download(bytes);
    return bytes;
  }

  std::vector<std::byte> launch_with_dumps() {
    DeviceBuffer<float> scores(dumped_);
    DeviceBuffer<std::uint32_t> counts(dumped_);
    scores.fill_bytes(0xFF);
    counts.fill_bytes(0);
    DeviceBuffer<std::uint32_t> features(
        kernel_->wants_features()
            ? static_cast<std::size_t>(step_.batch * step_.q_heads * step_.head_dim)
            : 0);
    features.fill_bytes(0xFF);
    DeviceStep step = step_;
    step.scores = scores.data();
    step.counts = counts.data();
    if (features.size() > 0) step.feature_counts = features.data();
    const BoundDump bounds(*kernel_, step);
    std::vector<std::byte> output = launch(step);
    bounds_ = bounds.download();
    bound_stride_ = step.bound_stride;
    feature_counts_.resize(features.size());
    features.download(feature_counts_);
    scores_.resize(dumped_);
    counts_.resize(dumped_);
    scores.download(scores_);
    counts.download(counts_);
    return output;
  }

  ScreeningDump screening_dump() const {
    if (bounds_.empty()) return {};
    return {bounds_, screening_.thresholds(), kernel_->screened_block(), bound_stride_};
  }

  /// Behind a sequence's rows no score may have been written: there both are NaN.
  void compare_scores(CaseResult& result) const {
    const bool screens = !bounds_.empty();
    result.scores_dumped = screens || !std::isnan(scores_.front());
    if (!result.scores_dumped) return;
    const std::vector<double> exact = float64_scores(step_, stream_.get(), scored_queries());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const bool expected = !std::isnan(exact[i]) && (!screens || counts_[i] > 0);
      const bool missing = expected == std::isnan(scores_[i]);
      const double error = missing     ? std::numeric_limits<double>::infinity()
                           : !expected ? 0
                                       : std::abs(exact[i] - scores_[i]);
      result.score_error = std::max(result.score_error, error);
    }
  }

  /// What keys are multiplied by, if not the step's own queries.
  OtherQueries scored_queries() const {
    OtherQueries all;
    if (method_.method->scores_exactly()) return all;
    const KeyScoring scoring = bernoulli_scoring(method_.parameters);
    const std::vector<float> queries = host_queries(step_);
    for (int b = 0; b < step_.batch; ++b) {
      for (int h = 0; h < step_.kv_heads; ++h) {
        const WeightedQueries own = scoring.queries(view_of_group(step_, {{}, queries}, b, h));
        all.values.insert(all.values.end(), own.values.begin(), own.values.end());
        all.scales.insert(all.scales.end(), own.scales.begin(), own.scales.end());
      }
    }
    return all;
  }

  const NamedMethod& method_;
  const DeviceLimits& limits_;
  std::unique_ptr<Kernel> kernel_;
  Stream stream_;
  KvCopies copies_;
  DeviceStep step_;
  std::vector<float> host_sinks_;
  DeviceBuffer<float> sinks_;
  DeviceBuffer<std::byte> output_;
  DeviceBuffer<std::byte> workspace_;
  std::size_t dumped_ = 0;
  std::vector<float> scores_;
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint32_t> feature_counts_;
  PreparedScreening screening_;
  KeptStates kept_;
  std::vector<float> bounds_;
  std::int64_t bound_stride_ = 0;
};

constexpr ElementType kBf16 = ElementType::kBfloat16;
constexpr ElementType kFp16 = ElementType::kFloat16;

/// Around every border of tiles, units and CTAs; 30011 is prime.
void add_lengths(std::vector<GpuCase>& cases) {
  for (const int n : {1, 15, 16, 17, 255, 256, 257, 1000, 4097, 8192, 30011}) {
    cases.push_back(hnd({n}, 8, 2, 128));
    cases.push_back(nhd(hnd({n}, 8, 8, 64, kFp16, 4)));
  }
}

/// Every group with every head size, in changing types, layouts and softmaxes.
void add_head_shapes(std::vector<GpuCase>& cases) {
  int i = 0;
  for (const int group : {1, 3, 4, 7, 8, 16}) {
    for (const int dim : {64, 80, 96, 128, 256}) {
      GpuCase shape = hnd({2999}, 2 * group, 2, dim, i % 2 == 0 ? kBf16 : kFp16, i % 3 * 3 + 1);
      if (i % 4 == 1) shape = nhd(shape);
      if (i % 4 == 2) shape = paged(16, shape);
      if (i % 4 == 3) shape = paged(64, shape);
      cases.push_back(shape);
      ++i;
    }
  }
}

void add_batches(std::vector<GpuCase>& cases) {
  cases.push_back(hnd({1, 1, 1}, 8, 2, 128));
  cases.push_back(hnd({999, 500}, 16, 1, 96, kFp16, 3));
  cases.push_back(paged(16, hnd({5000, 1, 2500}, 28, 4, 128, kBf16, 3)));
  cases.push_back(paged(64, hnd({5000, 300, 2500, 4999, 1024}, 28, 4, 128, kFp16, 3)));
  cases.push_back(nhd(hnd({17, 30011, 256}, 8, 2, 128, kBf16, 4)));
  cases.push_back(hnd({9000, 8000, 7000, 6000, 5000, 4000}, 32, 8, 128, kBf16, 4));
  cases.push_back(paged(16, hnd(std::vector<std::int32_t>(33, 513), 8, 2, 64)));
  cases.push_back(hnd(std::vector<std::int32_t>(64, 129), 8, 4, 128, kFp16, 8));
  cases.push_back(hnd({32768}, 32, 8, 128, kBf16, 8));
}

void add_caps_and_sinks(std::vector<GpuCase>& cases) {
  constexpr ElementType kFloat = ElementType::kFloat32;
  cases.push_back(with(hnd({2000}, 8, 2, 128, kBf16, 3), 20, false, kFloat));
  cases.push_back(with(nhd(hnd({4097}, 7, 1, 80, kFp16, 8)), 50, false, kFloat));
  cases.push_back(with(hnd({257, 4097}, 16, 2, 64), 0, true, kFloat));
  cases.push_back(with(paged(16, hnd({30011}, 28, 4, 128, kBf16, 4)), 0, true, kFloat));
  cases.push_back(with(hnd({1}, 8, 2, 128), 0, true, kFloat));
  cases.push_back(with(hnd({1000, 3}, 8, 2, 256, kFp16, 3), 30, true, kFloat));
  cases.push_back(with(hnd({4096}, 8, 2, 128), 0, false, kBf16));
  cases.push_back(with(hnd({4095}, 8, 2, 128, kFp16, 4), 0, true, kFp16));
}

}  // namespace

GpuCase hnd(std::vector<std::int32_t> contexts, int q_heads, int kv_heads, int head_dim,
            ElementType type, double query_sd) {
  GpuCase result;
  result.shape = {std::move(contexts), q_heads, kv_heads, head_dim, type,
                  MeasureLayout::kHnd, 16,      query_sd};
  return result;
}

GpuCase nhd(GpuCase base) {
  base.shape.layout = MeasureLayout::kNhd;
  return base;
}

GpuCase paged(int tokens, GpuCase base) {
  base.shape.layout = MeasureLayout::kPaged;
  base.shape.page_tokens = tokens;
  return base;
}

GpuCase with(GpuCase base, float logit_cap, bool sinks, ElementType output) {
  base.logit_cap = logit_cap;
  base.sinks = sinks;
  base.output = output;
  return base;
}

std::string GpuCase::text() const {
  const char* layout = shape.layout == MeasureLayout::kHnd   ? "hnd"
                       : shape.layout == MeasureLayout::kNhd ? "nhd"
                                                             : "paged";
  return fmt::format("{}/{}/{} {} {}:{}, sd {}, cap {}, sinks {}, output {}, contexts {} ({} new)",
                     shape.q_heads, shape.kv_heads, shape.head_dim, to_string(shape.type), layout,
                     shape.page_tokens, shape.query_sd, logit_cap, sinks, to_string(output),
                     fmt::join(shape.contexts, "+"), suffix);
}

std::vector<GpuCase> all_cases() {
  std::vector<GpuCase> cases;
  add_lengths(cases);
  add_head_shapes(cases);
  add_batches(cases);
  add_caps_and_sinks(cases);
  return cases;
}

std::vector<GpuCase> few_cases() {
  return {hnd({1}, 8, 2, 128),
          hnd({17}, 8, 2, 128, kBf16, 4),
          hnd({257}, 8, 2, 64, kFp16),
          hnd({4097}, 32, 8, 128, kBf16, 3),
          nhd(hnd({2999}, 7, 1, 96, kFp16, 4)),
          hnd({30011}, 28, 4, 128, kBf16, 4),
          paged(16, hnd({5000, 1, 2500}, 28, 4, 128, kBf16, 3)),
          with(hnd({1000, 3}, 8, 2, 256, kFp16, 3), 30, true, ElementType::kFloat32),
          hnd({300, 65}, 8, 2, 128, kBf16, 0),  // queries of zeros
          hnd({2999}, 32, 2, 128, kFp16, 2),
          hnd({700}, 16, 1, 256),
          hnd({1000}, 5, 5, 40, kBf16, 3),
          hnd(std::vector<std::int32_t>(64, 129), 64, 32, 64)};  // 15 teams a CTA
}

GpuCase loud_chunk_case(int group, int head_dim, ElementType type) {
  GpuCase result = hnd({5000}, 2 * group, 2, head_dim, type);
  result.loud_rows = {1536, 2048};
  return result;
}

CaseResult run_case(const NamedMethod& method, const GpuCase& gpu_case, const DeviceLimits& limits,
                    int repeats) {
  CaseRun run(method, gpu_case, limits);
  CaseResult refused;
  refused.refusal = run.refusal();
  return refused.refusal.empty() ? run.run(repeats) : refused;
}

}  // namespace kvsim::testing
