#include "traces/synth.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "traces/statistics.h"
#include "traces/synth_keys.h"
#include "traces/synth_queries.h"
#include "traces/trace_file.h"
#include "traces/trace_format.h"

namespace kvsim {
namespace {

using synth::Directions;

void check_between(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    fail<UsageError>("{} is {}, expected {} to {}", name, value, low, high);
  }
}

void check_shape(const SynthSpec& spec) {
  namespace format = trace_format;
  check_between("prompt_tokens", static_cast<double>(spec.prompt_tokens), 1, format::kMostTokens);
  check_between("decode_steps", static_cast<double>(spec.decode_steps), 1, format::kMostTokens);
  check_between("prompt_tokens + decode_steps",
                static_cast<double>(spec.prompt_tokens + spec.decode_steps), 2,
                format::kMostTokens);
  check_between("probe_queries", static_cast<double>(spec.probe_queries), 0,
                static_cast<double>(spec.prompt_tokens - 1));
  check_between("layers", spec.layers, 1, static_cast<double>(format::kMostLayer + 1));
  check_between("q_heads", spec.q_heads, 1, format::kMostHeads);
  check_between("kv_heads", spec.kv_heads, 1, spec.q_heads);
  if (spec.q_heads % spec.kv_heads != 0) {
    fail<UsageError>("q_heads is {} and kv_heads {}, expected a whole multiple", spec.q_heads,
                     spec.kv_heads);
  }
  check_between("head_dim", spec.head_dim, 8, 4096);
  check_between("v_head_dim", spec.v_head_dim, 1, spec.latent ? spec.head_dim : 4096);
  if (spec.latent && spec.kv_heads != 1) {
    fail<UsageError>("kv_heads is {}, expected 1 with the latent layout", spec.kv_heads);
  }
  constexpr double kMostNumbers = 0x1p34;  // in one random stream
  const double widest = std::max(spec.head_dim, spec.v_head_dim) + 3;
  if (static_cast<double>(spec.prompt_tokens + spec.decode_steps) * widest >= kMostNumbers) {
    fail<UsageError>("prompt_tokens {} with head_dim {} is too large to synthesize",
                     spec.prompt_tokens, spec.head_dim);
  }
}

void check_parameters(const SynthSpec& spec) {
  check_between("sink_mass", spec.sink_mass, 0, 1);
  check_between("recency", spec.recency, 0, 1);
  check_between("entropy_low_nats", spec.entropy_low_nats, 0, spec.entropy_high_nats);
  check_between("entropy_high_nats", spec.entropy_high_nats, 0, 100);
  check_between("group_correlation", spec.group_correlation, 0, 1);
  check_between("drift", spec.drift, 0, 2);
  check_between("key_correlation", spec.key_correlation, 0, 1);
  const double masses = spec.sink_mass + spec.recency;
  if (masses > 0.999) {
    fail<UsageError>("sink_mass + recency is {}, expected at most 0.999", masses);
  }
  check_between("sink_tokens", static_cast<double>(spec.sink_tokens), spec.sink_mass > 0 ? 1 : 0,
                static_cast<double>(spec.prompt_tokens));
  check_between("window_tokens", static_cast<double>(spec.window_tokens), 1,
                static_cast<double>(spec.prompt_tokens));
  if (spec.recency > 0 && spec.sink_tokens >= synth::tail_begin(spec)) {
    fail<UsageError>("sink_tokens {} and window_tokens {} leave nothing of {} prompt_tokens",
                     spec.sink_tokens, spec.window_tokens, spec.prompt_tokens - spec.probe_queries);
  }
}

TraceInfo make_info(const SynthSpec& spec) {
  TraceInfo info;
  info.model = "synthetic";
  info.source = fmt::format(
      "synthetic, not from a model: seed {}, sink_mass {} on {} tokens, recency {} on {} tokens, "
      "entropy {} to {} nats, group_correlation {}, drift {}, key_correlation {}",
      spec.seed, spec.sink_mass, spec.sink_tokens, spec.recency, spec.window_tokens,
      spec.entropy_low_nats, spec.entropy_high_nats, spec.group_correlation, spec.drift,
      spec.key_correlation);
  info.license = "CC0-1.0";
  info.prompt_tokens = spec.prompt_tokens;
  info.decode_steps = spec.decode_steps;
  info.rope = "none";
  info.rope_scaling = "none";
  info.synthetic = true;
  return info;
}

LayerInfo make_layer(const SynthSpec& spec, int index) {
  LayerInfo layer;
  layer.layer = index;
  layer.q_heads = spec.q_heads;
  layer.kv_heads = spec.kv_heads;
  layer.head_dim = spec.head_dim;
  layer.v_head_dim = spec.v_head_dim;
  layer.scale = 1 / std::sqrt(static_cast<double>(spec.head_dim));
  layer.layout = spec.latent ? KvLayout::kLatent : KvLayout::kHeads;
  layer.kv_type = spec.type;
  return layer;
}

RowsView view_of(const std::vector<std::byte>& bytes, ElementType type, int dim) {
  const auto rows = static_cast<std::int64_t>(bytes.size()) / (dim * bytes_of(type));
  return {bytes.data(), type, rows, dim, dim};
}

void write_values(const SynthSpec& spec, int layer, int head, TraceLayerWriter& writer) {
  constexpr std::int64_t kRows = 65536;
  const std::int64_t tokens = spec.prompt_tokens + spec.decode_steps;
  for (std::int64_t begin = 0; begin < tokens; begin += kRows) {
    const std::int64_t end = std::min(begin + kRows, tokens);
    const auto values = synth::make_values(spec, layer, head, begin, end);
    writer.write_values(head, begin, view_of(values, spec.type, spec.v_head_dim));
  }
}

HostTensor empty_queries(const SynthSpec& spec, std::int64_t count) {
  HostTensor tensor{spec.type, {count, spec.q_heads, spec.head_dim}, {}};
  tensor.data.resize(static_cast<std::size_t>(tensor.elements() * bytes_of(spec.type)));
  return tensor;
}

struct LayerResult {
  LayerStatistics statistics;
  std::int64_t missed = 0;  // queries that cannot have the entropy asked
};

LayerResult synthesize_layer(const SynthSpec& spec, int index, TraceWriter& writer,
                             const std::function<void()>& head_done,
                             std::vector<std::string>& notes) {
  LayerResult result;
  TraceLayer layer;
  layer.info = make_layer(spec, index);
  layer.q = empty_queries(spec, spec.decode_steps);
  if (spec.probe_queries > 0) layer.probe = empty_queries(spec, spec.probe_queries);
  StatisticsCollector collector(layer.info, spec.prompt_tokens, spec.decode_steps,
                                {spec.sink_tokens, spec.window_tokens, 0});
  const auto targets = synth::head_targets(spec, index);
  TraceLayerWriter layer_writer = writer.begin_layer(layer.info);
  for (int head = 0; head < spec.kv_heads; ++head) {
    const Directions directions = synth::make_directions(spec, index, head);
    const std::vector<std::byte> stored = synth::make_keys(spec, index, head, directions);
    const RowsView keys = view_of(stored, spec.type, spec.head_dim);
    layer_writer.write_keys(head, 0, keys);
    result.missed += synth::make_queries(spec, head, targets, directions, keys, layer, notes);
    collector.add(layer, head, keys);
    if (!spec.latent) write_values(spec, index, head, layer_writer);
    head_done();
  }
  layer_writer.write_tensor("q", layer.q);
  if (layer.probe) layer_writer.write_tensor("probe", *layer.probe);
  result.statistics = collector.finish(layer);
  return result;
}

/// Asked and reached, over layers.
std::vector<SynthQuantity> compare(const SynthSpec& spec,
                                   const std::vector<LayerStatistics>& layers) {
  const auto mean = [&](auto&& quantity) {
    double sum = 0;
    for (const LayerStatistics& layer : layers) sum += quantity(layer);
    return sum / static_cast<double>(layers.size());
  };
  const auto by_entropy = [](const HeadStatistics& a, const HeadStatistics& b) {
    return a.entropy_nats < b.entropy_nats;
  };
  const auto asked_mass = [](double mass) {
    return mass > 0 ? std::optional<double>(mass) : std::nullopt;
  };
  std::vector<SynthQuantity> result{
      {"sink_mass", asked_mass(spec.sink_mass),
       mean([](const LayerStatistics& layer) { return layer.mean.sink_mass; })},
      {"recency", asked_mass(spec.recency),
       mean([](const LayerStatistics& layer) { return layer.mean.window_mass; })},
      {"entropy_low_nats", spec.entropy_low_nats, mean([&](const LayerStatistics& layer) {
         return std::min_element(layer.heads.begin(), layer.heads.end(), by_entropy)->entropy_nats;
       })},
      {"entropy_high_nats", spec.entropy_high_nats, mean([&](const LayerStatistics& layer) {
         return std::max_element(layer.heads.begin(), layer.heads.end(), by_entropy)->entropy_nats;
       })},
      {"top1_probability", std::nullopt,
       mean([](const LayerStatistics& layer) { return layer.mean.top1_probability; })}};
  if (spec.q_heads > spec.kv_heads) {
    result.push_back({"group_correlation", spec.group_correlation,
                      mean([](const LayerStatistics& layer) { return *layer.group_cosine; })});
    result.push_back({"group_overlap", std::nullopt,
                      mean([](const LayerStatistics& layer) { return *layer.group_overlap; })});
  }
  if (spec.decode_steps > 1) {
    result.push_back(
        {"drift", spec.drift, mean([](const LayerStatistics& layer) { return *layer.drift; })});
  }
  return result;
}

}  // namespace

SynthResult synthesize(const SynthSpec& spec, const std::string& path,
                       const SynthOptions& options) {
  check_shape(spec);
  check_parameters(spec);
  SynthResult result;
  result.info = make_info(spec);
  TraceWriter writer(path, result.info, {options.force, options.compress});
  std::vector<LayerStatistics> statistics;
  std::int64_t missed = 0;
  std::int64_t done = 0;
  const auto head_done = [&] {
    ++done;
    if (options.progress) options.progress(done, std::int64_t{spec.layers} * spec.kv_heads);
  };
  for (int layer = 0; layer < spec.layers; ++layer) {
    LayerResult done_layer = synthesize_layer(spec, layer, writer, head_done, result.notes);
    missed += done_layer.missed;
    statistics.push_back(std::move(done_layer.statistics));
    result.info.layers.push_back(make_layer(spec, layer));
  }
  writer.commit();
  if (missed > 0) {
    result.notes.push_back(fmt::format(
        "{} of {} queries cannot have the entropy asked with the sink mass and recency asked",
        missed, spec.layers * (spec.decode_steps + spec.probe_queries) * spec.q_heads));
  }
  result.info.path = path;
  result.quantities = compare(spec, statistics);
  return result;
}

}  // namespace kvsim
