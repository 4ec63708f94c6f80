#include "traces/check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <system_error>

#include "core/error.h"
#include "traces/trace_file.h"
#include "traces/trace_format.h"

namespace kvsim {
namespace {

std::vector<std::int64_t> all_steps(const TraceLayer& layer) {
  std::vector<std::int64_t> steps(static_cast<std::size_t>(layer.q.shape[0]));
  std::iota(steps.begin(), steps.end(), std::int64_t{0});
  return steps;
}

/// Relative L2 distance of Σ weights * values (true weights) from the stored output.
double distance(const HeadAttention& attention, const RowsView& values,
                const std::vector<float>& expected) {
  std::vector<float> row(expected.size());
  std::vector<double> sum(expected.size());
  for (std::size_t i = 0; i < attention.weights.size(); ++i) {
    const auto index = attention.first_row + static_cast<std::int64_t>(i);
    load_rows(values, index, index + 1, values.dim, row.data());
    for (std::size_t j = 0; j < row.size(); ++j) sum[j] += attention.weights[i] * row[j];
  }
  double error = 0;
  double norm = 0;
  for (std::size_t j = 0; j < sum.size(); ++j) {
    const double difference = (1 - attention.sink_share) * sum[j] - expected[j];
    error += difference * difference;
    norm += static_cast<double>(expected[j]) * expected[j];
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

/// Bytes of row `index` of a tensor with its leading dimensions merged.
std::string_view row_bytes(const HostTensor& tensor, std::int64_t index) {
  const auto bytes = static_cast<std::size_t>(tensor.shape[2] * bytes_of(tensor.type));
  const auto* begin = reinterpret_cast<const char*>(tensor.data.data());
  return {begin + static_cast<std::size_t>(index) * bytes, bytes};
}

/// Rows that repeat the row before, of all rows that have one.
double repeated_share(const HostTensor& tensor) {
  const std::int64_t rows = tensor.shape[0] * tensor.shape[1];
  std::int64_t repeated = 0;
  for (std::int64_t row = 1; row < rows; ++row) {
    repeated += row_bytes(tensor, row) == row_bytes(tensor, row - 1) ? 1 : 0;
  }
  return rows > 1 ? static_cast<double>(repeated) / static_cast<double>(rows - 1) : 0;
}

bool all_equal(const HostTensor& tensor) {
  const auto element = static_cast<std::size_t>(bytes_of(tensor.type));
  // All elements equal the first when the bytes equal themselves shifted by one element.
  return tensor.data.size() <= element ||
         std::memcmp(tensor.data.data(), tensor.data.data() + element,
                     tensor.data.size() - element) == 0;
}

/// Collects warnings about one layer.
class Plausibility {
 public:
  Plausibility(const TraceInfo& trace, const TraceLayer& layer, std::vector<std::string>& warnings)
      : trace_(trace), layer_(layer), warnings_(warnings) {}

  void check() {
    const bool latent = layer_.info.layout == KvLayout::kLatent;
    check_tensor(latent ? "kv" : "k", layer_.k);
    if (!latent) check_tensor("v", layer_.v);
    check_tensor("q", layer_.q);
    check_attention();
    check_output();
    check_attention_sum();
  }

 private:
  void warn(const std::string& object, const std::string& text) {
    warnings_.push_back(fmt::format("{}: {}/{}: {}", trace_.path,
                                    trace_format::layer_group(layer_.info.layer), object, text));
  }

  void check_tensor(const char* name, const HostTensor& tensor) {
    if (tensor.elements() > 1 && all_equal(tensor)) {
      warn(name, "all values are equal");
      return;
    }
    if (trace_.synthetic) return;  // narrow or fully correlated rows repeat by design
    const double repeated = repeated_share(tensor);
    if (repeated > 0.01) {
      warn(name,
           fmt::format("{:.1f} % of the rows repeat the row before (padding?)", 100 * repeated));
    }
  }

  void check_attention() {
    StatisticsOptions options;
    options.max_steps = 4;
    const LayerStatistics measured = attention_statistics(layer_, trace_.prompt_tokens, options);
    const LayerInfo& info = layer_.info;
    const std::int64_t least = trace_.prompt_tokens + 1;  // what the first step sees
    const auto visible =
        static_cast<double>(info.window > 0 ? std::min(info.window, least) : least);
    const double uniform = std::log(visible);
    const std::string scale =
        fmt::format("check 'scale' ({}, 1/sqrt(head_dim) is {:.6g})", info.scale,
                    1 / std::sqrt(static_cast<double>(info.head_dim)));
    if (visible > 8 && measured.mean.entropy_nats > 0.999 * uniform) {
      warn("q", fmt::format("attention is uniform: entropy {:.3f} of at most {:.3f} nats; {}",
                            measured.mean.entropy_nats, uniform, scale));
    }
    if (visible > 8 && measured.mean.top1_probability > 0.99) {
      warn("q", fmt::format("one token takes {:.1f} % of the attention; {}",
                            100 * measured.mean.top1_probability, scale));
    }
    if (measured.largest_logit > 300) {
      warn("q", fmt::format("a logit has magnitude {:.4g}; {}", measured.largest_logit, scale));
    }
  }

  void check_output() {
    constexpr double kTolerated = 0.01;  // stored outputs of real captures miss by 0.003 at most
    const auto error = output_error(layer_, trace_.prompt_tokens);
    if (error && *error > kTolerated) {
      warn("o",
           fmt::format("differs from the attention of q, k and v by up to {:.3g} (relative L2), "
                       "expected at most {}",
                       *error, kTolerated));
    }
  }

  void check_attention_sum() {
    if (!layer_.attention_sum || !layer_.sink_logits.empty()) return;
    const HostTensor& sums = *layer_.attention_sum;
    std::vector<float> row(static_cast<std::size_t>(sums.shape[2]));
    for (std::int64_t head = 0; head < sums.shape[1]; ++head) {
      load_rows(sums.rows(0), head, head + 1, static_cast<int>(row.size()), row.data());
      const double total = std::accumulate(row.begin(), row.end(), 0.0);
      const auto expected = static_cast<double>(trace_.prompt_tokens);
      if (std::abs(total - expected) > 0.01 * expected) {
        warn("attention_sum",
             fmt::format("head {} sums to {:.6g}, expected one per prompt token: {}", head, total,
                         expected));
        return;
      }
    }
  }

  const TraceInfo& trace_;
  const TraceLayer& layer_;
  std::vector<std::string>& warnings_;
};

void warn_of_missing(const hdf5::File& file, const TraceInfo& info,
                     std::vector<std::string>& warnings) {
  for (const char* name : {"source", "license", "rope_theta"}) {
    const bool needless = std::string_view(name) == "rope_theta" && info.rope == "none";
    if (!needless && !file.has_attribute("/", name)) {
      warnings.push_back(fmt::format("{}: /: attribute '{}' is missing", file.path(), name));
    }
  }
}

void check_layers(const hdf5::File& file, const TraceInfo& info, TraceCheck& result) {
  const auto report = [&](const std::string& problem) { result.problems.push_back(problem); };
  for (const LayerInfo& layer : info.layers) {
    const std::size_t before = result.problems.size();
    try {
      const TraceLayer data = trace_format::read_layer(file, info, layer, report);
      // Statistics of data with NaN say nothing.
      if (result.problems.size() == before) {
        Plausibility(info, data, result.warnings).check();
      }
    } catch (const RuntimeError& error) {
      report(error.what());
    }
  }
}

LayerReport describe_layer(const TraceLayer& layer, const TraceInfo& info,
                           const StatisticsOptions& options) {
  LayerReport report;
  report.info = layer.info;
  report.statistics = attention_statistics(layer, info.prompt_tokens, options);
  report.q_type = layer.q.type;
  report.kv_bytes = static_cast<std::int64_t>(layer.k.data.size() + layer.v.data.size());
  report.probe_steps = layer.probe ? layer.probe->shape[0] : 0;
  report.has_output = layer.output.has_value();
  report.has_attention_sum = layer.attention_sum.has_value();
  report.has_sink_logits = !layer.sink_logits.empty();
  for (const auto& [name, tensor] : layer.learned) {
    report.parameters.push_back({name, tensor.type, trace_format::parameter_extent(tensor)});
  }
  for (const auto& [method, state] : layer.prepared) {
    PreparedReport& each = report.prepared.emplace_back(PreparedReport{method, state.settings});
    for (const PreparedState::Arrays& arrays : state.heads) {
      for (const auto& [name, values] : arrays) {
        each.bytes += static_cast<std::int64_t>(values.size() * sizeof(std::int32_t));
      }
    }
  }
  report.output_error = output_error(layer, info.prompt_tokens);
  return report;
}

}  // namespace

std::optional<double> output_error(const TraceLayer& layer, std::int64_t prompt_tokens) {
  if (!layer.output) return std::nullopt;
  const std::vector<std::int64_t> steps = all_steps(layer);
  std::vector<double> errors(steps.size());
  for (int kv_head = 0; kv_head < layer.info.kv_heads; ++kv_head) {
    const RowsView values = layer.values(kv_head);
    visit_attention(layer, prompt_tokens, kv_head, layer.keys(kv_head), steps,
                    [&](const HeadAttention& attention) {
                      std::vector<float> expected(static_cast<std::size_t>(values.dim));
                      load_rows(layer.output->rows(attention.step), attention.head,
                                attention.head + 1, values.dim, expected.data());
                      double& error = errors[static_cast<std::size_t>(attention.step)];
                      error = std::max(error, distance(attention, values, expected));
                    });
  }
  return *std::max_element(errors.begin(), errors.end());
}

std::string summarize(const TraceInfo& info) {
  std::string text =
      fmt::format("{}, {} layer{}, {} + {} tokens", info.model, info.layers.size(),
                  info.layers.size() == 1 ? "" : "s", info.prompt_tokens, info.decode_steps);
  if (info.layers.empty()) return text;
  const LayerInfo& layer = info.layers.front();
  text += fmt::format(", {}/{} heads of {}", layer.q_heads, layer.kv_heads, layer.head_dim);
  if (layer.v_head_dim != layer.head_dim) text += fmt::format("/{}", layer.v_head_dim);
  if (layer.layout == KvLayout::kLatent) text += " (latent)";
  text += fmt::format(", {}", to_string(layer.kv_type));
  return info.synthetic ? text + ", synthetic" : text;
}

TraceCheck check_trace(const std::string& path) {
  TraceCheck result;
  const auto report = [&](const std::string& problem) { result.problems.push_back(problem); };
  try {
    const hdf5::File file = trace_format::open_file(path);
    const TraceInfo info = trace_format::read_info(file, report);
    if (!info.layers.empty()) {
      result.summary = summarize(info);
      warn_of_missing(file, info, result.warnings);
      trace_format::read_tokens(file, info, report);
      check_layers(file, info, result);
    }
  } catch (const RuntimeError& error) {
    report(error.what());
  }
  return result;
}

TraceReport describe_trace(const std::string& path, const StatisticsOptions& options) {
  const TraceReader reader(path);
  TraceReport report;
  report.info = reader.info();
  std::error_code ignored;
  report.file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, ignored));
  report.has_tokens = !reader.read_tokens().empty();
  for (std::size_t i = 0; i < report.info.layers.size(); ++i) {
    report.layers.push_back(describe_layer(reader.read_layer(i), report.info, options));
  }
  return report;
}

}  // namespace kvsim
