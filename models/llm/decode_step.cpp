#include <algorithm>
#include <array>

#include "core/error.h"
#include "models/llm/llm.h"

namespace kvsim {
namespace {

constexpr double kBytesPerUsPerGb = 1e3;  // 1 GB/s in bytes per microsecond
/// Matrix products of a layer as serving engines launch them: q, k and v in one, output, gate and
/// up in one, down.
constexpr double kProductsPerLayer = 4;

/// One pass over the weights, shared by the batch: bytes, or multiply-adds when the batch is large.
Estimate weights_us(const Llm& llm, const Machine& machine, double batch) {
  const Estimate bytes_us = exactly(llm.streamed_weight_bytes / kBytesPerUsPerGb, Source::kSpec) /
                            machine.memory.stream.gb_per_s;
  const double multiply_adds = batch * llm.streamed_weight_bytes / llm.weight_bytes_per_element;
  Estimate compute_us = exactly(0, Source::kSpec);
  for (const Op op : {Op::kMultiply, Op::kAdd}) {  // 0: not a limit
    const Estimate& per_us = machine.op(op, Phase::kScore).per_us;
    if (per_us.value > 0) compute_us += exactly(multiply_adds, Source::kSpec) / per_us;
  }
  // Every product, the head's too, starts a kernel and fills the memory's pipeline. At best the
  // next one's weights are on their way by then. What lies between products (norms, rotary
  // embedding, activation) is left out: few bytes, and no sourced time.
  Estimate start_us = (machine.boundary(Boundary::kKernelLaunch) + machine.memory.read_ramp_us) *
                      (kProductsPerLayer * llm.layers + 1);
  start_us.low = 0;
  return max(bytes_us, compute_us) + start_us;
}

/// After the attention's output product and after the MLP's last, every GPU needs the sum of all.
/// The gathering of logits at the end is left out.
Estimate all_reduce_us(const Llm& llm, const Machine& machine, double batch) {
  if (llm.tensor_parallel == 1) return exactly(0, Source::kSpec);
  if (!machine.link) {
    fail<UsageError>("{} GPUs share {}, but the preset {} has no [link] to time their all-reduce",
                     llm.tensor_parallel, llm.name, machine.name);
  }
  constexpr double kActivationBytes = 2;
  constexpr double kPerLayer = 2;
  const double gpus = llm.tensor_parallel;
  const double steps = 2 * (gpus - 1);
  const double bytes = batch * llm.hidden * kActivationBytes * steps / gpus;
  const Estimate moved_us =
      exactly(bytes / kBytesPerUsPerGb, Source::kSpec) / machine.link->gb_per_s;
  return (machine.link->all_reduce_us + machine.link->step_us * steps + moved_us) *
         (kPerLayer * llm.layers);
}

Estimate attention_us(std::span<const LayersAndTime> layers, const Llm& llm) {
  Estimate sum = exactly(0, Source::kSpec);
  int covered = 0;
  for (const LayersAndTime& part : layers) {
    sum += part.attention_us * static_cast<double>(part.layers);
    covered += part.layers;
  }
  if (covered != llm.layers) {
    fail<RuntimeError>("decode step of {}: attention times cover {} layers, the model has {}",
                       llm.name, covered, llm.layers);
  }
  return sum;
}

/// Dense and method share the weights, and their attention shares the machine's parameters:
/// numerator and denominator move together, so each bound is a ratio of matching corners. The
/// weights may be at either end whatever attention does.
Estimate speedup_of(const Estimate& weights, const Estimate& dense, const Estimate& method) {
  const auto ratio = [](double w, double d, double m) { return (w + d) / (w + m); };
  const std::array<double, 5> corners{
      ratio(weights.value, dense.value, method.value), ratio(weights.low, dense.low, method.low),
      ratio(weights.low, dense.high, method.high), ratio(weights.high, dense.low, method.low),
      ratio(weights.high, dense.high, method.high)};
  const auto [low, high] = std::minmax_element(corners.begin(), corners.end());
  return {corners[0], *low, *high, (weights + dense + method).source};
}

}  // namespace

DecodeStep decode_step(const Llm& llm, const Machine& machine, double batch,
                       std::span<const LayersAndTime> dense,
                       std::span<const LayersAndTime> method) {
  if (!(batch >= 1)) fail<UsageError>("batch is {}, expected at least 1", batch);
  DecodeStep step;
  step.weights_us = weights_us(llm, machine, batch);
  const Estimate dense_attention = attention_us(dense, llm);
  const Estimate method_attention = attention_us(method, llm);
  step.all_reduce_us = all_reduce_us(llm, machine, batch);
  const Estimate rest = step.weights_us + step.all_reduce_us;
  step.dense_us = rest + dense_attention;
  step.method_us = rest + method_attention;
  step.speedup = speedup_of(rest, dense_attention, method_attention);
  step.attention_share = dense_attention.value / step.dense_us.value;
  return step;
}

double amdahl_speedup(double weight_bytes, double kv_bytes, double attention_speedup) {
  const double all = weight_bytes + kv_bytes;
  if (!(weight_bytes >= 0 && kv_bytes >= 0 && all > 0 && attention_speedup > 0)) {
    fail<UsageError>("Amdahl's law needs bytes not below 0 and a speedup above 0, found {}, {}, {}",
                     weight_bytes, kv_bytes, attention_speedup);
  }
  return 1 / (weight_bytes / all + kv_bytes / all / attention_speedup);
}

}  // namespace kvsim
