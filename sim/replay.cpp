#include "sim/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/progress.h"
#include "sim/device_layer.h"
#include "sim/layer_cost.h"
#include "sim/layer_replay.h"
#include "sim/prepare_cost.h"
#include "traces/trace_file.h"

namespace kvsim {
namespace {

/// Seeds replayed together: they share exact scores and the float64 truth, and keep their rows in
/// memory until they are costed.
constexpr int kRepeatsAtOnce = 16;

/// What will be replayed of one trace.
struct Plan {
  std::vector<std::int64_t> layers;
  std::vector<std::int64_t> steps;
};

Plan plan_trace(const TraceInfo& info, const ReplayOptions& options) {
  std::vector<std::int64_t> layers;
  for (const LayerInfo& layer : info.layers) layers.push_back(layer.layer);
  std::vector<std::int64_t> steps(static_cast<std::size_t>(info.decode_steps));
  std::iota(steps.begin(), steps.end(), std::int64_t{0});
  const Plan plan{options.layers.pick(layers, info.path), options.steps.pick(steps, info.path)};
  if (plan.layers.empty() || plan.steps.empty()) {
    fail<RuntimeError>("{}: no {} to replay", info.path,
                       plan.layers.empty() ? "layers" : "decode steps");
  }
  return plan;
}

/// Layers of several traces are pooled by their index, so they must have one shape.
void check_same_shape(const Replay& result, const TraceInfo& trace, const LayerInfo& info) {
  const auto found = result.layer_infos.find(info.layer);
  if (found == result.layer_infos.end()) return;
  const LayerInfo& first = found->second;
  const auto check = [&](const char* name, std::int64_t there, std::int64_t here) {
    if (here == there) return;
    fail<RuntimeError>(
        "{}: layer {}: {} is {}, but {} in {}: replay traces of different models one by one",
        trace.path, info.layer, name, here, there, result.traces.front().path);
  };
  check("q_heads", first.q_heads, info.q_heads);
  check("kv_heads", first.kv_heads, info.kv_heads);
  check("head_dim", first.head_dim, info.head_dim);
  check("v_head_dim", first.v_head_dim, info.v_head_dim);
  check("latent", first.layout == KvLayout::kLatent, info.layout == KvLayout::kLatent);
  check("window", first.window, info.window);
}

double stored_bytes(const LayerJob& job, const LayerInfo& info) {
  const int width = info.head_dim + (info.layout == KvLayout::kLatent ? 0 : info.v_head_dim);
  double rows = 0;
  for (const std::int64_t step : job.steps) {
    const Range visible = visible_rows(info, job.prompt_tokens, step);
    rows += static_cast<double>(visible.end - visible.begin);
  }
  return rows * info.kv_heads * width * bytes_of(info.kv_type);
}

std::int64_t group_steps(const TraceInfo& info, const Plan& plan) {
  std::int64_t heads = 0;
  for (const LayerInfo& layer : info.layers) {
    for (const std::int64_t picked : plan.layers)
      heads += picked == layer.layer ? layer.kv_heads : 0;
  }
  return heads * static_cast<std::int64_t>(plan.steps.size());
}

void add_prepare(const LayerJob& job, const LayerInfo& info, const LayerReplay& replayed,
                 const Target& target, Replay& result) {
  for (std::size_t method = 0; method < result.runs.size(); ++method) {
    const auto state_bytes = static_cast<double>(replayed.state_bytes(method));
    result.runs[method].state_bytes += state_bytes;
    if (state_bytes == 0) continue;
    const Shape shape =
        shape_on(target, head_shape(info), {&job.prompt_tokens, 1}, job.prompt_tokens);
    const auto cost = prepare_cost(result.methods[method].method->implementation(), shape, target);
    if (cost) {
      result.runs[method].prepare.add(*cost, 0);
      result.runs[method].prepare_bytes +=
          cost->traffic.dram_read_bytes + cost->traffic.dram_write_bytes;
    } else {
      result.runs[method].prepare_bytes += dense_bytes(shape, head_shape(info).latent);
    }
  }
}

void add_bias(const LayerJob& job, int layer, const std::optional<ErrorSums>& errors,
              Replay& result) {
  for (std::size_t method = 0; method < result.runs.size(); ++method) {
    BiasSums& bias = result.runs[method].bias[layer];
    if (!errors) continue;
    for (const ErrorSum& sum : errors->of_method(method)) bias.add(sum, job.repeats);
  }
}

/// A layer in memory, and on the GPU if it is replayed there.
struct LoadedLayer {
  TraceLayer layer;
  std::unique_ptr<GpuLayer> gpu;
};

LoadedLayer load_layer(const LayerJob& job, const TraceReader& reader, std::size_t index,
                       bool on_gpu) {
  LoadedLayer loaded{reader.read_layer(index), nullptr};
  if (on_gpu) loaded.gpu = upload_layer(job, loaded.layer);
  return loaded;
}

/// Times the kernels over the rows of the middle step.
void time_layer(const LayerJob& job, const LoadedLayer& loaded, const StepThresholds& thresholds,
                Replay& result) {
  const LayerInfo& info = loaded.layer.info;
  const bool cold = result.targets[0].state == CacheState::kCold;
  const GpuLaunch middle = device_launch(job, info, 0, job.seed, job.steps[job.steps.size() / 2]);
  const std::vector<Estimate> times = loaded.gpu->times(middle, job.steps, thresholds, cold);
  const auto steps = static_cast<double>(job.steps.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    MeasuredSum& sum = result.runs[i].times[info.layer];
    sum.us += times[i] * steps;
    sum.steps += steps;
  }
}

/// Returns the thresholds of its launches on the GPU.
StepThresholds replay_layer(const LayerJob& job, const TraceInfo& trace, const LoadedLayer& loaded,
                            int threads, Progress& progress, Replay& result) {
  const TraceLayer& layer = loaded.layer;
  const LayerInfo& info = layer.info;
  const std::int64_t tokens = trace.tokens();
  check_same_shape(result, trace, info);
  result.layer_infos.emplace(info.layer, info);
  StepThresholds thresholds;
  std::optional<ErrorSums> errors;
  if (job.repeats > 1) {
    errors.emplace(job.methods.size(), job.steps.size(), static_cast<std::size_t>(info.q_heads));
  }
  for (int first = 0; first < job.repeats; first += kRepeatsAtOnce) {
    LayerJob part = job;
    part.seed = job.seed + static_cast<std::uint64_t>(first);
    part.repeats = std::min(kRepeatsAtOnce, job.repeats - first);
    const LayerReplay replayed(
        part, layer, threads, [&](std::int64_t groups) { progress.advance(groups); },
        loaded.gpu.get(), errors ? &*errors : nullptr);
    cost_layer(part, info, tokens, replayed, threads, result);
    for (std::size_t method = 0; method < result.runs.size(); ++method) {
      for (const std::string& note : replayed.notes(method)) {
        add_distinct(note, result.runs[method].notes);
      }
    }
    if (first > 0) continue;
    add_prepare(part, info, replayed, result.targets[0], result);
    thresholds = replayed.thresholds();
  }
  add_bias(job, info.layer, errors, result);
  cost_dense_layer(job, info, tokens, threads, result);
  result.stored_bytes += stored_bytes(job, info);
  return thresholds;
}

void replay_trace(const TraceReader& reader, std::size_t sequence, const ReplayOptions& options,
                  Progress& progress, Replay& result) {
  LayerJob job;
  job.trace = reader.info().path;
  job.prompt_tokens = reader.info().prompt_tokens;
  job.sequence = static_cast<std::uint32_t>(sequence);
  job.seed = options.seed;
  job.repeats = options.repeats;
  job.steps = result.steps[sequence];
  job.methods = result.methods;
  std::vector<std::size_t> indices;  // of the layers picked
  for (std::size_t i = 0; i < reader.info().layers.size(); ++i) {
    const auto& picked = result.layers[sequence];
    const std::int64_t layer = reader.info().layers[i].layer;
    if (std::find(picked.begin(), picked.end(), layer) != picked.end()) indices.push_back(i);
  }
  // On the GPU the next layer is read and uploaded while this one is replayed; on the CPU memory
  // holds one at a time.
  const auto load = [&](std::size_t i) {
    return std::async(options.on_gpu ? std::launch::async : std::launch::deferred,
                      [&, i] { return load_layer(job, reader, indices[i], options.on_gpu); });
  };
  std::future<LoadedLayer> next = load(0);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const LoadedLayer loaded = next.get();
    if (i + 1 < indices.size()) next = load(i + 1);
    const StepThresholds thresholds =
        replay_layer(job, reader.info(), loaded, options.threads, progress, result);
    if (!options.measure) continue;
    if (next.valid()) next.wait();  // an upload would disturb the times
    time_layer(job, loaded, thresholds, result);
  }
}

}  // namespace

CostSum total_of(const std::map<int, LayerCosts>& layers, std::size_t target) {
  CostSum total;
  for (const auto& [layer, costs] : layers) total.add(costs[target]);
  return total;
}

BiasSums total_of(const std::map<int, BiasSums>& layers) {
  BiasSums total;
  for (const auto& [layer, bias] : layers) total += bias;
  return total;
}

Replay replay(ReplayOptions options) {
  KVSIM_CHECK(!options.targets.empty());
  Replay result{.traces = {},
                .layers = {},
                .steps = {},
                .layer_infos = {},
                .seed = options.seed,
                .repeats = options.repeats,
                .gpu = {},
                .measured = options.measure,
                .targets = std::move(options.targets),
                .specs = options.methods,
                .methods = {},
                .runs = {},
                .dense = make_method("dense"),
                .dense_layers = {}};
  if (options.on_gpu) result.gpu = gpu_info();
  for (const std::string& spec : options.methods) result.methods.push_back(make_method(spec));
  result.runs.resize(result.methods.size());
  std::vector<TraceReader> readers;
  std::int64_t total = 0;
  for (const std::string& path : options.traces) {
    readers.emplace_back(path);
    const TraceInfo& info = readers.back().info();
    const Plan plan = plan_trace(info, options);
    total += group_steps(info, plan);
    result.traces.push_back(info);
    result.layers.push_back(plan.layers);
    result.steps.push_back(plan.steps);
  }
  Progress progress("replay", total * ((options.repeats + kRepeatsAtOnce - 1) / kRepeatsAtOnce));
  for (std::size_t i = 0; i < readers.size(); ++i) {
    replay_trace(readers[i], i, options, progress, result);
  }
  double layers = 0;
  for (const auto& picked : result.layers) layers += static_cast<double>(picked.size());
  for (MethodRun& run : result.runs) {
    run.prepare_bytes /= layers;
    run.state_bytes /= layers;
  }
  return result;
}

}  // namespace kvsim
