#include "kernels/measure/threshold_source.h"

#include "kernels/cache_of_layer.h"

namespace kvsim {

ThresholdSource::ThresholdSource(const Method& method, const TracedStep* traced) : method_(method) {
  if (traced == nullptr) return;
  const TraceLayer& layer = *traced->layer;
  if (!layer.learned.empty()) learned_ = &layer.learned;
  const std::int64_t prompt = traced->rows.end - traced->step - 1;  // windows and all
  for (int head = 0; head < layer.info.kv_heads; ++head) {
    states_.push_back(method.prepare(cache_of_layer(layer, head, prompt)));
  }
}

std::vector<float> ThresholdSource::thresholds(StepView view, int kv_head,
                                               std::span<const float> bounds) const {
  view.learned = learned_;
  const State* state = states_.empty() ? nullptr : states_[static_cast<std::size_t>(kv_head)].get();
  return method_.block_thresholds(view, state, bounds);
}

}  // namespace kvsim
