#include "sim/device_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/measure/selection.h"

namespace kvsim {
namespace {

/// Whether a method reads every row whatever the scores, so that its kernel has nothing to draw.
bool reads_all_rows(const Method& method) {
  constexpr std::int64_t kRows = std::int64_t{1} << 40;  // more than any method's `keys`
  Shape shape;
  const std::int64_t contexts[] = {kRows};
  shape.contexts = contexts;
  shape.q_heads = shape.kv_heads = 1;
  shape.head_dim = shape.v_head_dim = 64;
  return method.bounds(shape).low.v_rows == kRows;
}

/// What such a method reads; its scores only weigh.
Selection all_rows(const Method& method, const StepView& view) {
  const auto size = static_cast<std::size_t>(view.rows() * view.group);
  return method.select(view, {view.rows(), std::vector<float>(size, 0.0f)}, nullptr);
}

/// The part of a dump [q_heads, rows] that belongs to query head g of the view's group.
template <typename T>
std::span<const T> head_of(std::span<const T> dump, const StepView& view, int g) {
  const auto rows = static_cast<std::size_t>(view.rows());
  return dump.subspan((view.random.head + static_cast<std::size_t>(g)) * rows, rows);
}

/// The part of something of all query heads that belongs to the view's group.
std::vector<float> of_group(std::span<const float> all, const StepView& view, std::size_t q_heads) {
  const std::size_t each = all.size() / q_heads;
  const auto own =
      all.subspan(view.random.head * each, static_cast<std::size_t>(view.group) * each);
  return {own.begin(), own.end()};
}

/// Whether the kernel chose rows by bounds: then it leaves NaN in the scores of all others.
bool chose_by_bounds(const LaunchResult& launch) {
  return !launch.thresholds.empty() || !launch.output.bounds.empty();
}

/// The kernel's scores of the group, and what it chose rows by.
Scores dumped_scores(const StepView& view, const LaunchResult& launch) {
  const GpuOutput& output = launch.output;
  Scores scores{view.rows(), {}};
  for (int g = 0; g < view.group; ++g) {
    const auto head = head_of(output.scores, view, g);
    scores.values.insert(scores.values.end(), head.begin(), head.end());
  }
  if (!chose_by_bounds(launch)) return scores;
  const std::size_t q_heads = output.scores.size() / static_cast<std::size_t>(view.rows());
  scores.screening = {of_group(output.bounds, view, q_heads),
                      of_group(launch.thresholds, view, q_heads)};
  return scores;
}

bool are_finite(const StepView& view, const Scores& scores, const LaunchResult& launch) {
  for (int g = 0; g < view.group; ++g) {
    const auto head = scores.head(g);
    const auto counts = head_of(launch.output.counts, view, g);
    for (std::size_t row = 0; row < head.size(); ++row) {
      const bool dumped = !chose_by_bounds(launch) || counts[row] > 0;
      if (dumped && !std::isfinite(head[row])) return false;
    }
  }
  return true;
}

}  // namespace

std::string device_refusal(const TraceLayer& layer) {
  const LayerInfo& info = layer.info;
  if (info.layout == KvLayout::kLatent) return "its cache is latent, which no kernel takes";
  if (info.v_head_dim != info.head_dim) {
    return fmt::format("its rows of K have {} elements, those of V {}, but kernels take equal ones",
                       info.head_dim, info.v_head_dim);
  }
  const HostTensor* tensors[] = {&layer.k, &layer.v, &layer.q};
  for (std::size_t i = 0; i < 3; ++i) {
    if (tensors[i]->type == ElementType::kFloat32) {
      return fmt::format("its {} is float32, but kernels take float16 or bfloat16", "kvq"[i]);
    }
    if (tensors[i]->type != layer.k.type) {
      return fmt::format("its {} is {}, its k {}, but kernels take one type for q, k and v",
                         "kvq"[i], to_string(tensors[i]->type), to_string(layer.k.type));
    }
  }
  return "";
}

std::unique_ptr<GpuLayer> upload_layer(const LayerJob& job, const TraceLayer& layer) {
  const LayerInfo& info = layer.info;
  GpuLayerInput input;
  input.where = fmt::format("{}: layer {}", job.trace, info.layer);
  const std::string refusal = device_refusal(layer);
  if (!refusal.empty()) fail<RuntimeError>("{}: {}", input.where, refusal);
  input.type = layer.k.type;
  input.q_heads = info.q_heads;
  input.kv_heads = info.kv_heads;
  input.head_dim = info.head_dim;
  input.tokens = layer.k.shape[1];
  const Range last = visible_rows(info, job.prompt_tokens, job.steps.back());
  input.most_rows = last.end - last.begin;
  input.steps = layer.q.shape[0];
  input.k = layer.k.data.data();
  input.v = layer.v.data.data();
  input.q = layer.q.data.data();
  input.sink_logits = layer.sink_logits;
  input.scale = static_cast<float>(info.scale);
  input.logit_cap = static_cast<float>(info.logit_cap);
  input.prompt_tokens = visible_prompt(info, job.prompt_tokens);
  input.windowed = last.begin > 0;
  return layer_on_gpu(input, job.methods);
}

GpuLaunch device_launch(const LayerJob& job, const LayerInfo& info, std::size_t method,
                        std::uint64_t seed, std::int64_t step) {
  return {method,
          step,
          visible_rows(info, job.prompt_tokens, step),
          {.seed = seed,
           .layer = static_cast<std::uint32_t>(info.layer),
           .step = static_cast<std::uint32_t>(step),
           .sequence = job.sequence}};
}

Selection device_selection(const NamedMethod& method, const StepView& view,
                           const LaunchResult& launch, State* state, const std::string& where) {
  if (!chose_by_bounds(launch) && reads_all_rows(*method.method)) {
    return all_rows(*method.method, view);
  }
  const Scores scores = dumped_scores(view, launch);
  if (!are_finite(view, scores, launch)) {
    fail<RuntimeError>("{}: {}: the kernel left scores that are not finite", where, method.name);
  }
  Selection selection = method.method->select(view, scores, state);
  for (int g = 0; g < view.group; ++g) {
    const auto difference = first_difference(selection.heads[static_cast<std::size_t>(g)],
                                             head_of(launch.output.counts, view, g));
    if (!difference) continue;
    fail<RuntimeError>(
        "{}: {}: head {}, row {}: the kernel drew it {} times, its rule {} times from the same "
        "{}",
        where, method.name, view.random.head + static_cast<std::uint32_t>(g), difference->row,
        difference->dumped, difference->expected, chose_by_bounds(launch) ? "bounds" : "scores");
  }
  return selection;
}

}  // namespace kvsim
