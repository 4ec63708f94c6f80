#include <algorithm>
#include <charconv>
#include <set>

#include "core/error.h"
#include "core/hdf5.h"
#include "traces/finite.h"
#include "traces/import.h"
#include "traces/safetensors.h"
#include "traces/trace_file.h"
#include "traces/trace_format.h"

namespace kvsim {
namespace {

constexpr std::string_view kParameters = "parameters.";

/// String metadata, parsed.
class Metadata {
 public:
  explicit Metadata(const SafetensorsFile& file) : file_(file) {}

  std::string text(const std::string& key, const std::string& fallback) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? fallback : found->second;
  }

  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = std::nullopt) const {
    return parse<std::int64_t>(key, low, high, fallback, "a whole number");
  }

  double number(const std::string& key, double low, double high,
                std::optional<double> fallback = std::nullopt) const {
    return parse<double>(key, low, high, fallback, "a number");
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const {
    fail<RuntimeError>("{}: metadata '{}' is '{}', expected {}", file_.path(), key, text(key, ""),
                       expected);
  }

  template <typename T>
  T parse(const std::string& key, T low, T high, const std::optional<T>& fallback,
          const char* what) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) {
      if (fallback) return *fallback;
      fail<RuntimeError>("{}: metadata '{}' is missing", file_.path(), key);
    }
    const std::string& word = found->second;
    if (fallback && (word == "None" || word == "null" || word.empty())) return *fallback;
    T value{};
    const auto parsed = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == word.data() + word.size();
    if (!whole) refuse(key, what);
    if (!(value >= low && value <= high))
      refuse(key, fmt::format("{} from {} to {}", what, low, high));
    return value;
  }

  const SafetensorsFile& file_;
};

TraceInfo read_info(const Metadata& metadata, std::vector<std::string>& notes) {
  namespace format = trace_format;
  TraceInfo info;
  info.model = metadata.text("model", "unknown");
  info.source = metadata.text("source", "");
  info.license = metadata.text("license", "");
  info.prompt_tokens = metadata.integer("prompt_tokens", 1, format::kMostTokens);
  info.decode_steps = metadata.integer("decode_steps", 1, format::kMostTokens - info.prompt_tokens);
  info.rope_theta = metadata.number("rope_theta", 0, format::kMostRopeTheta, 0.0);
  info.rope = metadata.text("rope", "");
  if (info.rope.empty()) {
    info.rope = info.rope_theta > 0 ? "applied" : "none";
    notes.push_back(fmt::format("no metadata 'rope': taken as '{}' since rope_theta is {}",
                                info.rope, info.rope_theta > 0 ? "given" : "not given"));
  }
  info.rope_scaling = metadata.text("rope_scaling", "none");
  if (info.rope_scaling == "None" || info.rope_scaling == "null") info.rope_scaling = "none";
  info.rotary_dim = static_cast<int>(metadata.integer("rotary_dim", 0, format::kMostDim, 0));
  info.synthetic = metadata.integer("synthetic", 0, 1, 0) != 0;
  return info;
}

LayerInfo read_layer_info(const Metadata& metadata, const SafetensorsFile& file) {
  namespace format = trace_format;
  LayerInfo layer;
  layer.q_heads = static_cast<int>(metadata.integer("num_attention_heads", 1, format::kMostHeads));
  layer.kv_heads = static_cast<int>(metadata.integer("num_key_value_heads", 1, layer.q_heads));
  if (layer.q_heads % layer.kv_heads != 0) {
    fail<RuntimeError>(
        "{}: num_attention_heads is {} and num_key_value_heads {}, expected a whole "
        "multiple",
        file.path(), layer.q_heads, layer.kv_heads);
  }
  layer.head_dim = static_cast<int>(metadata.integer("head_dim", 1, format::kMostDim));
  layer.v_head_dim =
      static_cast<int>(metadata.integer("v_head_dim", 1, format::kMostDim, layer.head_dim));
  layer.scale = metadata.number("scale", format::kLeastScale, format::kMostScale);
  layer.window = metadata.integer("window", 0, format::kMostTokens, 0);
  layer.logit_cap = metadata.number("logit_cap", 0, format::kMostLogitCap, 0.0);
  if (layer.logit_cap > 0 && layer.logit_cap < format::kLeastLogitCap) {
    fail<RuntimeError>("{}: metadata 'logit_cap' is {}, expected 0 (none) or at least {}",
                       file.path(), layer.logit_cap, format::kLeastLogitCap);
  }
  return layer;
}

bool is_known(std::string_view name) {
  static const std::set<std::string_view> known{"q", "k", "v", "q_probe", "o"};
  return known.contains(name) || (name.starts_with(kParameters) && name != kParameters);
}

/// Layer numbers that some tensor `layers.<i>.<name>` mentions; other tensors become notes.
std::set<int> find_layers(const SafetensorsFile& file, std::vector<std::string>& notes) {
  static constexpr std::string_view kPrefix = "layers.";
  std::set<int> layers;
  for (const auto& [name, entry] : file.tensors()) {
    int layer = -1;
    const bool prefixed = std::string_view(name).substr(0, kPrefix.size()) == kPrefix;
    const char* end = name.data() + name.size();
    const auto parsed = prefixed ? std::from_chars(name.data() + kPrefix.size(), end, layer)
                                 : std::from_chars_result{};
    const bool numbered = prefixed && parsed.ec == std::errc() && parsed.ptr != end &&
                          *parsed.ptr == '.' && layer >= 0 && layer <= trace_format::kMostLayer;
    if (numbered && is_known(std::string_view(parsed.ptr + 1, end))) {
      layers.insert(layer);
    } else {
      notes.push_back(fmt::format("tensor '{}' is ignored", name));
    }
  }
  if (layers.empty()) {
    fail<RuntimeError>("{}: no tensor 'layers.<i>.q', '.k' or '.v' in the file", file.path());
  }
  return layers;
}

HostTensor read_checked(const SafetensorsFile& file, const std::string& name,
                        const trace_format::TensorShape& shape) {
  HostTensor tensor = file.read_tensor(name);
  const auto bad = first_unusable(tensor.data, tensor.type);
  if (bad) {
    const std::int64_t column = *bad % tensor.shape[2];
    const std::int64_t row = *bad / tensor.shape[2] % tensor.shape[1];
    fail<RuntimeError>("{}: tensor '{}': value at [{}, {}, {}] ({}) {}", file.path(), name,
                       *bad / tensor.shape[2] / tensor.shape[1], row, column, shape.dimensions,
                       unusable_text(tensor.data, tensor.type, *bad));
  }
  return tensor;
}

/// The tensors that begin with `prefix`, by what follows.
LearnedParameters read_parameters(const SafetensorsFile& file, const std::string& prefix) {
  LearnedParameters result;
  for (const auto& [name, entry] : file.tensors()) {
    if (!name.starts_with(prefix) || name == prefix) continue;
    const std::string own = name.substr(prefix.size());
    if (own.find('/') != std::string::npos) {
      fail<RuntimeError>("{}: tensor '{}': the name has a /, which no dataset's has", file.path(),
                         name);
    }
    if (entry.shape.empty() || entry.shape.size() > 3 || hdf5::elements_of(entry.shape) == 0) {
      fail<RuntimeError>("{}: tensor '{}': shape is {}, expected 1 to 3 dimensions, none of them 0",
                         file.path(), name, hdf5::to_string(entry.shape));
    }
    result.emplace(own, read_checked(file, name, {"", entry.shape, "a learned parameter"}));
  }
  return result;
}

TraceLayer read_layer(const SafetensorsFile& file, const TraceInfo& info, const LayerInfo& layer) {
  const std::string prefix = fmt::format("layers.{}.", layer.layer);
  const auto read = [&](const char* name, const char* as) {
    const trace_format::TensorShape shape = trace_format::tensor_shape(as, info, layer);
    file.at(prefix + name, shape.extent);
    return read_checked(file, prefix + name, shape);
  };
  TraceLayer result;
  result.info = layer;
  result.k = read("k", "k");
  result.v = read("v", "v");
  result.q = read("q", "q");
  if (result.k.type != result.v.type) {
    fail<RuntimeError>("{}: layer {}: k is {} and v {}, expected one dtype", file.path(),
                       layer.layer, to_string(result.k.type), to_string(result.v.type));
  }
  result.info.kv_type = result.k.type;
  if (file.has(prefix + "q_probe")) result.probe = read("q_probe", "probe");
  if (file.has(prefix + "o")) result.output = read("o", "o");
  result.learned = read_parameters(file, prefix + std::string(kParameters));
  return result;
}

}  // namespace

ImportResult import_safetensors(const std::string& input, const std::string& output,
                                const ImportOptions& options) {
  const SafetensorsFile file(input);
  const Metadata metadata(file);
  ImportResult result;
  result.info = read_info(metadata, result.notes);
  if (result.info.rope != "applied" && result.info.rope != "none") {
    fail<RuntimeError>("{}: metadata 'rope' is '{}', expected 'applied' or 'none'", input,
                       result.info.rope);
  }
  LayerInfo layer = read_layer_info(metadata, file);
  TraceWriter writer(output, result.info, {options.force, options.compress});
  for (const int number : find_layers(file, result.notes)) {
    layer.layer = number;
    const TraceLayer data = read_layer(file, result.info, layer);
    writer.write_layer(data);
    result.info.layers.push_back(data.info);
  }
  writer.commit();
  result.info.path = output;
  return result;
}

ImportResult import_trace(const std::string& input, const std::string& output,
                          const ImportOptions& options) {
  const auto ends_with = [&](std::string_view ending) {
    return std::string_view(input).ends_with(ending);
  };
  if (ends_with(".safetensors")) {
    if (options.workload || options.sequence) {
      fail<UsageError>("--{} chooses from a FlashInfer-Trace file, {} is a safetensors file",
                       options.workload ? "workload" : "sequence", input);
    }
    return import_safetensors(input, output, options);
  }
  if (ends_with(".jsonl") || ends_with(".json")) return import_flashinfer(input, output, options);
  fail<UsageError>("{}: unknown kind of file, expected .safetensors, or .jsonl of FlashInfer-Trace",
                   input);
}

}  // namespace kvsim
