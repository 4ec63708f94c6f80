// A layer of a trace on the GPU: uploaded once, then one launch per step, method and seed, whose
// results come back while the next one runs.

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/device/buffer.cuh"
#include "kernels/device/kernel.h"
#include "kernels/measure/feature_copy.cuh"
#include "kernels/measure/gpu.h"
#include "kernels/measure/gpu_layer.h"
#include "kernels/measure/graph_timer.cuh"
#include "kernels/measure/kv_copies.cuh"
#include "kernels/measure/pinned.cuh"
#include "kernels/measure/statistics.h"

namespace kvsim {
namespace {

constexpr std::size_t kSlots = 2;  // launches under way
constexpr int kTimedRounds = 15;
constexpr std::size_t kMostTimedSteps = 256;

/// What a launch reads of its own and where it writes, on the GPU and, once it is done, on the
/// host.
struct Slot {
  Slot(std::size_t outputs, std::size_t most_dumped, std::size_t heads, std::size_t most_bounds)
      : output(outputs),
        scores(most_dumped),
        counts(most_dumped),
        thresholds(heads),
        bounds(most_bounds),
        host_output(outputs),
        host_scores(most_dumped),
        host_counts(most_dumped),
        host_thresholds(heads),
        host_bounds(most_bounds) {}

  DeviceBuffer<float> output;
  DeviceBuffer<float> scores;
  DeviceBuffer<std::uint32_t> counts;
  DeviceBuffer<float> thresholds;  // what it reads
  DeviceBuffer<float> bounds;
  PinnedBuffer<float> host_output;
  PinnedBuffer<float> host_scores;
  PinnedBuffer<std::uint32_t> host_counts;
  PinnedBuffer<float> host_thresholds;
  PinnedBuffer<float> host_bounds;
  Event done;
  std::size_t dumped = 0;   // elements of the last launch's dumps
  std::size_t bounded = 0;  // of its bounds
};

/// One of the copies of a layer that timed calls read in turn.
struct TimedCopy {
  const std::byte* k;
  const std::byte* v;
  FeatureMajorKeys k_by_feature = {};  // of the rows that are timed
};

/// Those of some steps that timed calls take in turn.
struct TimedSteps {
  explicit TimedSteps(std::span<const std::int64_t> all)
      : steps(all), stride(all.size() / kMostTimedSteps + 1) {}
  std::size_t count() const { return (steps.size() + stride - 1) / stride; }
  std::size_t index(std::size_t call) const { return call % count() * stride; }

  std::span<const std::int64_t> steps;
  std::size_t stride;
};

/// What timed calls of a method that keeps something read beside K and V.
struct TimedScreening {
  std::vector<DeviceBuffer<std::byte>> prepared;  // of each copy
  DeviceBuffer<float> thresholds;                 // [steps, q_heads], of one that screens blocks
};

struct MethodOnGpu {
  std::unique_ptr<Kernel> kernel;
  DeviceBuffer<std::byte> workspace;
  FeatureCopy features = {};              // for kernels that want one: of a launch's rows
  DeviceBuffer<std::byte> prepared = {};  // of a launch's rows, or from states, once
};

class LayerOnGpu : public GpuLayer {
 public:
  LayerOnGpu(const GpuLayerInput& input, std::span<const NamedMethod> methods);
  ~LayerOnGpu() override;

  void keep_states(std::size_t method, std::span<const State* const> states) override;
  void enqueue(const GpuLaunch& launch) override;
  GpuOutput take() override;
  std::vector<Estimate> times(const GpuLaunch& launch, std::span<const std::int64_t> steps,
                              const StepThresholds& thresholds, bool cold) override;

 private:
  /// Bytes of K, V and the queries of a step.
  std::size_t kv_bytes() const {
    return static_cast<std::size_t>(2 * input_.kv_heads * input_.tokens * input_.head_dim);
  }
  std::size_t query_bytes() const {
    return static_cast<std::size_t>(2 * input_.q_heads * input_.head_dim);
  }
  std::size_t outputs() const { return query_bytes() / 2; }

  void finish_uploads() {
    if (!std::exchange(uploaded_, true)) uploader_.finish();
  }
  DeviceStep step_of(const GpuLaunch& launch) const;
  DeviceStep step_of(const GpuLaunch& launch, const TimedCopy& copy) const;
  void add_method(const NamedMethod& method);
  FeatureCopy features_for_steps() const {
    return {1, input_.kv_heads, input_.head_dim, input_.most_rows};
  }
  /// Grows the method's workspace to what the step takes.
  void reserve(MethodOnGpu& method, const DeviceStep& step) const;
  void upload_all();
  /// Rows that what a kernel keeps has room for: with states those of the prompt.
  std::int64_t prepared_rows(const Kernel& kernel) const {
    return kernel.wants_states() ? input_.prompt_tokens : input_.most_rows;
  }
  /// Points a step to what its kernel keeps; makes it of the step's rows if it is not from states.
  void prepare(const Kernel& kernel, DeviceStep& step, std::byte* prepared) const;
  void attach_bounds(const MethodOnGpu& method, Slot& slot, DeviceStep& step) const;
  void attach_thresholds(const MethodOnGpu& method, const GpuLaunch& launch, Slot& slot,
                         DeviceStep& step) const;
  /// For times(): another copy of K, V or what is kept; and what the copies' kernels want of K.
  const std::byte* add_copy(std::vector<DeviceBuffer<std::byte>>& owned,
                            const DeviceBuffer<std::byte>& original) const;
  std::vector<FeatureCopy> add_feature_copies(const GpuLaunch& launch,
                                              std::span<TimedCopy> copies) const;
  TimedScreening screening_of(const MethodOnGpu& method, const GpuLaunch& launch,
                              std::span<const TimedCopy> copies,
                              std::span<const float> thresholds) const;
  CallGraph graph_of(MethodOnGpu& method, const GpuLaunch& launch, const TimedSteps& timed,
                     std::span<const TimedCopy> copies, const TimedScreening& screening);

  GpuLayerInput input_;
  DeviceLimits limits_;
  DeviceBuffer<std::byte> k_;
  DeviceBuffer<std::byte> v_;
  DeviceBuffer<std::byte> q_;
  DeviceBuffer<float> sinks_;
  Uploader uploader_;
  bool uploaded_ = false;
  Stream stream_;
  std::vector<MethodOnGpu> methods_;
  std::array<std::unique_ptr<Slot>, kSlots> slots_;
  std::size_t enqueued_ = 0;
  std::size_t taken_ = 0;
};

LayerOnGpu::LayerOnGpu(const GpuLayerInput& input, std::span<const NamedMethod> methods)
    : input_(input), limits_(gpu_info().limits) {
  // The kernels are asked first: they refuse at once what an upload would only delay.
  for (const NamedMethod& method : methods) add_method(method);
  k_ = DeviceBuffer<std::byte>(kv_bytes());
  v_ = DeviceBuffer<std::byte>(kv_bytes());
  q_ = DeviceBuffer<std::byte>(query_bytes() * static_cast<std::size_t>(input.steps));
  const auto heads = static_cast<std::size_t>(input.q_heads);
  const std::size_t dumped = heads * static_cast<std::size_t>(input.most_rows);
  std::size_t bounds = 1;  // so that a step without blocks still has somewhere to point
  for (const MethodOnGpu& method : methods_) {
    const auto index = static_cast<std::size_t>(&method - methods_.data());
    const DeviceStep longest = step_of({index, 0, {0, input_.most_rows}, {}});
    const std::int64_t stride = method.kernel->bound_stride(longest);
    bounds = std::max(bounds, heads * static_cast<std::size_t>(stride));
  }
  for (auto& slot : slots_) slot = std::make_unique<Slot>(outputs(), dumped, heads, bounds);
  upload_all();
}

/// Nothing may be freed under a copy or a launch, whatever was thrown.
LayerOnGpu::~LayerOnGpu() { cudaDeviceSynchronize(); }

void LayerOnGpu::add_method(const NamedMethod& method) {
  methods_.push_back({kernel_registry().at(method.name).make(method.parameters), {}});
  MethodOnGpu& result = methods_.back();
  const DeviceStep longest = step_of({methods_.size() - 1, 0, {0, input_.most_rows}, {}});
  const std::string refusal = result.kernel->refusal(longest, limits_);
  if (!refusal.empty()) fail<RuntimeError>("{}: {}: {}", input_.where, method.name, refusal);
  if (result.kernel->wants_states() && input_.windowed) {
    fail<RuntimeError>(
        "{}: {}: the layer has a window, which its rule attends to densely and its kernel cannot",
        input_.where, method.name);
  }
  reserve(result, longest);
  if (result.kernel->wants_features()) result.features = features_for_steps();
  result.prepared = DeviceBuffer<std::byte>(result.kernel->prepared_bytes(longest));
}

void LayerOnGpu::reserve(MethodOnGpu& method, const DeviceStep& step) const {
  const std::size_t bytes = std::max<std::size_t>(method.kernel->workspace_bytes(step, limits_), 1);
  if (bytes > method.workspace.size()) method.workspace = DeviceBuffer<std::byte>(bytes);
}

void LayerOnGpu::upload_all() {
  if (!input_.sink_logits.empty()) {
    sinks_ = DeviceBuffer<float>(input_.sink_logits.size());
    sinks_.upload(input_.sink_logits);
  }
  uploader_.upload(input_.q, q_.data(), q_.size());
  uploader_.upload(input_.k, k_.data(), k_.size());
  uploader_.upload(input_.v, v_.data(), v_.size());
}

/// A window is an offset into every head's rows: all heads keep the stride of the whole cache.
DeviceStep LayerOnGpu::step_of(const GpuLaunch& launch) const {
  const std::int64_t head = input_.tokens * input_.head_dim;
  const auto first = static_cast<std::size_t>(2 * launch.rows.begin * input_.head_dim);
  DeviceStep step;
  step.type = input_.type;
  step.q_heads = input_.q_heads;
  step.kv_heads = input_.kv_heads;
  step.head_dim = input_.head_dim;
  step.contexts[0] = static_cast<std::int32_t>(launch.rows.end - launch.rows.begin);
  step.q = q_.data() + query_bytes() * static_cast<std::size_t>(launch.step);
  step.k = {k_.data() + first, input_.kv_heads * head, head, input_.head_dim};
  step.v = {v_.data() + first, input_.kv_heads * head, head, input_.head_dim};
  step.scale = input_.scale;
  step.logit_cap = input_.logit_cap;
  step.sink_logits = sinks_.size() > 0 ? sinks_.data() : nullptr;
  step.prompt_tokens = input_.prompt_tokens;
  step.random = launch.random;
  step.output_type = ElementType::kFloat32;
  step.prepared_rows = prepared_rows(*methods_[launch.method].kernel);
  return step;
}

DeviceStep LayerOnGpu::step_of(const GpuLaunch& launch, const TimedCopy& copy) const {
  const auto offset = static_cast<std::size_t>(2 * launch.rows.begin * input_.head_dim);
  DeviceStep step = step_of(launch);
  step.k.data = copy.k + offset;
  step.v.data = copy.v + offset;
  step.k_by_feature = copy.k_by_feature;
  return step;
}

void LayerOnGpu::keep_states(std::size_t method, std::span<const State* const> states) {
  const MethodOnGpu& own = methods_[method];
  if (!own.kernel->wants_states()) return;
  finish_uploads();
  const DeviceStep step = step_of({method, 0, {0, input_.most_rows}, {}});
  own.kernel->upload_states(step, states, own.prepared.data(), stream_.get());
}

/// All of them anew: those of a window begin at another row in every step.
void LayerOnGpu::prepare(const Kernel& kernel, DeviceStep& step, std::byte* prepared) const {
  if (!kernel.wants_states()) kernel.prepare(step, step.contexts[0], prepared, stream_.get());
  step.prepared = prepared;
}

/// Gives a launch room for what it dumps beside scores. Blocks count as far as they are full.
void LayerOnGpu::attach_bounds(const MethodOnGpu& method, Slot& slot, DeviceStep& step) const {
  const int block = method.kernel->screened_block();
  step.bound_stride = block > 0 ? step.contexts[0] / block : method.kernel->bound_stride(step);
  slot.bounded = static_cast<std::size_t>(input_.q_heads * step.bound_stride);
  if (slot.bounded == 0) return;
  step.bounds = slot.bounds.data();
  check_cuda(cudaMemsetAsync(slot.bounds.data(), 0xFF, 4 * slot.bounded, stream_.get()),
             "poisoning bounds");
}

void LayerOnGpu::attach_thresholds(const MethodOnGpu& method, const GpuLaunch& launch, Slot& slot,
                                   DeviceStep& step) const {
  if (method.kernel->screened_block() == 0) return;
  const auto heads = static_cast<std::size_t>(input_.q_heads);
  KVSIM_CHECK(launch.thresholds.size() == heads);
  std::copy(launch.thresholds.begin(), launch.thresholds.end(), slot.host_thresholds.data());
  check_cuda(cudaMemcpyAsync(slot.thresholds.data(), slot.host_thresholds.data(), 4 * heads,
                             cudaMemcpyHostToDevice, stream_.get()),
             "uploading thresholds");
  step.thresholds = slot.thresholds.data();
}

void LayerOnGpu::enqueue(const GpuLaunch& launch) {
  KVSIM_CHECK(enqueued_ - taken_ < kSlots);
  finish_uploads();
  Slot& slot = *slots_[enqueued_++ % kSlots];
  MethodOnGpu& method = methods_[launch.method];
  DeviceStep step = step_of(launch);
  reserve(method, step);
  step.dump_stride = step.contexts[0];
  slot.dumped = static_cast<std::size_t>(input_.q_heads * step.dump_stride);
  step.output = slot.output.data();
  step.scores = slot.scores.data();
  step.counts = slot.counts.data();
  const auto fill = [&](void* data, int value, std::size_t bytes) {
    check_cuda(cudaMemsetAsync(data, value, bytes, stream_.get()), "filling device memory");
  };
  fill(slot.output.data(), 0xFF, 4 * outputs());
  fill(slot.scores.data(), 0xFF, 4 * slot.dumped);
  fill(slot.counts.data(), 0, 4 * slot.dumped);
  // A workspace remembers launches of one shape only, and every step is longer than the last.
  fill(method.workspace.data(), 0, method.workspace.size());
  if (method.kernel->wants_features()) method.features.fill(step, stream_.get());
  if (method.prepared.size() > 0) prepare(*method.kernel, step, method.prepared.data());
  attach_bounds(method, slot, step);
  attach_thresholds(method, launch, slot, step);
  method.kernel->launch(step, limits_, method.workspace.data(), stream_.get());
  const auto fetch = [&](void* to, const void* from, std::size_t count) {
    check_cuda(cudaMemcpyAsync(to, from, 4 * count, cudaMemcpyDeviceToHost, stream_.get()),
               "download");
  };
  fetch(slot.host_output.data(), slot.output.data(), outputs());
  fetch(slot.host_scores.data(), slot.scores.data(), slot.dumped);
  fetch(slot.host_counts.data(), slot.counts.data(), slot.dumped);
  fetch(slot.host_bounds.data(), slot.bounds.data(), slot.bounded);
  slot.done.record(stream_);
}

GpuOutput LayerOnGpu::take() {
  KVSIM_CHECK(taken_ < enqueued_);
  const Slot& slot = *slots_[taken_++ % kSlots];
  slot.done.wait();
  return {slot.host_output.first(outputs()), slot.host_scores.first(slot.dumped),
          slot.host_counts.first(slot.dumped), slot.host_bounds.first(slot.bounded)};
}

/// Nothing of a method that keeps nothing. What is from states has its own K and V: it is copied.
TimedScreening LayerOnGpu::screening_of(const MethodOnGpu& method, const GpuLaunch& launch,
                                        std::span<const TimedCopy> copies,
                                        std::span<const float> thresholds) const {
  TimedScreening result;
  if (method.prepared.size() == 0) return result;
  for (const TimedCopy& copy : copies) {
    DeviceStep step = step_of(launch, copy);
    if (method.kernel->wants_states()) {
      add_copy(result.prepared, method.prepared);
      continue;
    }
    result.prepared.emplace_back(method.prepared.size());
    prepare(*method.kernel, step, result.prepared.back().data());
  }
  if (thresholds.empty()) return result;
  result.thresholds = DeviceBuffer<float>(thresholds.size());
  check_cuda(cudaMemcpyAsync(result.thresholds.data(), thresholds.data(), thresholds.size_bytes(),
                             cudaMemcpyHostToDevice, stream_.get()),
             "uploading thresholds");
  return result;
}

/// Calls go over all steps and over all copies, each in turn.
CallGraph LayerOnGpu::graph_of(MethodOnGpu& method, const GpuLaunch& launch,
                               const TimedSteps& timed, std::span<const TimedCopy> copies,
                               const TimedScreening& screening) {
  const std::size_t count = copies.size();
  const std::size_t calls = timed.count() * ((count + timed.count() - 1) / timed.count());
  reserve(method, step_of(launch));
  check_cuda(cudaMemsetAsync(method.workspace.data(), 0, method.workspace.size(), stream_.get()),
             "clearing a workspace");
  return CallGraph(static_cast<int>(calls), stream_.get(), [&](int i) {
    const auto call = static_cast<std::size_t>(i);
    const std::size_t index = timed.index(call);
    GpuLaunch own = launch;
    own.step = timed.steps[index];
    own.random.step = static_cast<std::uint32_t>(own.step);
    DeviceStep step = step_of(own, copies[call % count]);
    if (!screening.prepared.empty()) {
      step.prepared = screening.prepared[call % count].data();
    }
    if (screening.thresholds.size() > 0) {
      step.thresholds =
          screening.thresholds.data() + index * static_cast<std::size_t>(input_.q_heads);
    }
    step.output = slots_[0]->output.data();
    step.output_type = input_.type;  // as an engine wants it
    method.kernel->launch(step, limits_, method.workspace.data(), stream_.get());
  });
}

const std::byte* LayerOnGpu::add_copy(std::vector<DeviceBuffer<std::byte>>& owned,
                                      const DeviceBuffer<std::byte>& original) const {
  owned.emplace_back(original.size());
  check_cuda(cudaMemcpyAsync(owned.back().data(), original.data(), original.size(),
                             cudaMemcpyDeviceToDevice, stream_.get()),
             "copying device memory");
  return owned.back().data();
}

std::vector<FeatureCopy> LayerOnGpu::add_feature_copies(const GpuLaunch& launch,
                                                        std::span<TimedCopy> copies) const {
  std::vector<FeatureCopy> features;
  const bool wanted = std::any_of(methods_.begin(), methods_.end(), [](const MethodOnGpu& method) {
    return method.kernel->wants_features();
  });
  if (!wanted) return features;
  for (TimedCopy& copy : copies) {
    features.push_back(features_for_steps());
    DeviceStep step = step_of(launch, copy);
    features.back().fill(step, stream_.get());
    copy.k_by_feature = features.back().keys();
  }
  return features;
}

std::vector<Estimate> LayerOnGpu::times(const GpuLaunch& launch,
                                        std::span<const std::int64_t> steps,
                                        const StepThresholds& thresholds, bool cold) {
  KVSIM_CHECK(taken_ == enqueued_ && !steps.empty() && thresholds.size() == methods_.size());
  finish_uploads();
  const double read = static_cast<double>(kv_bytes()) / static_cast<double>(input_.tokens) *
                      static_cast<double>(launch.rows.end - launch.rows.begin);
  const bool packed = std::ranges::any_of(
      methods_, [](const MethodOnGpu& method) { return method.kernel->wants_states(); });
  // K, V, and as much as K again for what a kernel keeps beside them; a packed cache is K, V and
  // leaders once more, of which a step may read no more than the leaders, a quarter of K.
  const double stored = (packed ? 6.0 : 3.0) * static_cast<double>(kv_bytes());
  const int count = cold ? cold_copies(packed ? read / 4 : read, stored, limits_.l2_bytes) : 1;
  std::vector<DeviceBuffer<std::byte>> owned;
  std::vector<TimedCopy> copies{{k_.data(), v_.data()}};
  for (int i = 1; i < count; ++i) {
    const std::byte* k = add_copy(owned, k_);
    copies.push_back({k, add_copy(owned, v_)});
  }
  const std::vector<FeatureCopy> features = add_feature_copies(launch, copies);
  GraphTimer timer(limits_.sms, stream_.get());
  std::vector<TimedScreening> screenings;
  std::vector<CallGraph> graphs;
  for (std::size_t m = 0; m < methods_.size(); ++m) {
    screenings.push_back(screening_of(methods_[m], launch, copies, thresholds[m]));
    graphs.push_back(graph_of(methods_[m], launch, TimedSteps(steps), copies, screenings.back()));
    timer.time(graphs.back());  // warm-up
  }
  std::vector<std::vector<double>> samples(graphs.size());
  for (int round = 0; round < kTimedRounds; ++round) {
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      const std::size_t m = round % 2 == 0 ? i : graphs.size() - 1 - i;
      samples[m].push_back(timer.time(graphs[m]).us);
    }
  }
  std::vector<Estimate> result;
  for (const auto& own : samples) {
    const Interval us = median_interval(own);
    result.push_back({us.value, us.low, us.high, Source::kMeasured});
  }
  return result;
}

[[maybe_unused]] const bool kRegistered = [] {
  measure_backend().layer = [](const GpuLayerInput& input, std::span<const NamedMethod> methods) {
    return std::unique_ptr<GpuLayer>(std::make_unique<LayerOnGpu>(input, methods));
  };
  return true;
}();

}  // namespace
}  // namespace kvsim
