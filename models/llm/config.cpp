#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/text_file.h"
#include "models/llm/dimensions.h"

namespace kvsim {
namespace {

using Json = nlohmann::json;
using Windows = Architecture::Windows;

/// A Hugging Face config.json. Keys that are absent or null take the default that transformers
/// gives.
class Config {
 public:
  Config(Json json, std::string path) : json_(std::move(json)), path_(std::move(path)) {}

  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }

  std::int64_t integer(const char* key) const {
    if (!has(key)) fail<RuntimeError>("{}: {}: no such key, expected a whole number", path_, key);
    const Json& value = json_.at(key);
    if (!value.is_number_integer()) wrong(key, "a whole number");
    return value.get<std::int64_t>();
  }
  std::int64_t integer_or(const char* key, std::int64_t fallback) const {
    return has(key) ? integer(key) : fallback;
  }
  int size(const char* key) const { return narrow(key, integer(key)); }
  int size_above_0(const char* key) const {
    const int value = size(key);
    if (value == 0) wrong(key, "a size above 0");
    return value;
  }
  int size_or(const char* key, int fallback) const { return has(key) ? size(key) : fallback; }

  bool flag_or(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!json_.at(key).is_boolean()) wrong(key, "true or false");
    return json_.at(key).get<bool>();
  }
  double number(const char* key) const {
    if (!json_.at(key).is_number()) wrong(key, "a number");
    return json_.at(key).get<double>();
  }
  std::string text(const char* key) const {
    if (!has(key)) fail<RuntimeError>("{}: {}: no such key, expected a text", path_, key);
    if (!json_.at(key).is_string()) wrong(key, "a text");
    return json_.at(key).get<std::string>();
  }
  const Json& json(const char* key) const { return json_.at(key); }
  const std::string& path() const { return path_; }

  [[noreturn]] void wrong(const char* key, std::string_view expected) const {
    fail<RuntimeError>("{}: {}: found {}, expected {}", path_, key, json_.at(key).dump(), expected);
  }

 private:
  int narrow(const char* key, std::int64_t value) const {
    constexpr std::int64_t kLargest = 1 << 30;
    if (value < 0 || value > kLargest) wrong(key, "a size between 0 and 2^30");
    return static_cast<int>(value);
  }

  Json json_;
  std::string path_;
};

Config read_config(const std::string& path) {
  const std::string text = read_text_file(path);
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    fail<RuntimeError>("{}: is not JSON: {}", path, error.what());
  }
  if (!json.is_object()) fail<RuntimeError>("{}: expected a JSON object", path);
  return {std::move(json), path};
}

/// What would make the counts below wrong: better no answer than a wrong one.
void refuse_what_is_not_modelled(const Config& config) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    if (config.has(key)) {
      fail<RuntimeError>("{}: {}: mixtures of experts are not supported yet", config.path(), key);
    }
  }
  for (const char* key : {"kv_lora_rank", "quantization_config", "text_config"}) {
    if (config.has(key)) fail<RuntimeError>("{}: {}: is not supported yet", config.path(), key);
  }
}

std::vector<std::int64_t> windows_by_type(const Config& config, int layers, std::int64_t window) {
  const Json& types = config.json("layer_types");
  if (!types.is_array() || types.size() != static_cast<std::size_t>(layers)) {
    config.wrong("layer_types", fmt::format("a list of {} texts", layers));
  }
  std::vector<std::int64_t> windows;
  for (const Json& type : types) {
    const bool slides = type == "sliding_attention";
    if (!slides && type != "full_attention") {
      config.wrong("layer_types", "sliding_attention or full_attention");
    }
    if (slides && window <= 0) config.integer("sliding_window");
    windows.push_back(slides ? window : 0);
  }
  return windows;
}

std::vector<std::int64_t> windows_of(const Config& config, const Architecture& architecture,
                                     int layers) {
  const bool used =
      config.flag_or("use_sliding_window", architecture.windows != Windows::kFromMaxWindowLayers);
  const std::int64_t window = used ? config.integer_or("sliding_window", 0) : 0;
  if (window < 0) config.wrong("sliding_window", "a window above 0");
  if (config.has("layer_types")) return windows_by_type(config, layers, window);
  const int first = architecture.windows == Windows::kFromMaxWindowLayers && window > 0
                        ? config.size("max_window_layers")
                        : 0;
  const int every = config.size_or("sliding_window_pattern", architecture.every);
  std::vector<std::int64_t> windows;
  for (int layer = 0; layer < layers; ++layer) {
    bool slides = false;
    if (architecture.windows == Windows::kAll) slides = true;
    if (architecture.windows == Windows::kFromMaxWindowLayers) slides = layer >= first;
    if (architecture.windows == Windows::kAllButEveryNth) {
      slides = every > 0 && (layer + 1) % every != 0;
    }
    windows.push_back(slides ? window : 0);
  }
  return windows;
}

/// Bytes of a weight. Text says what the file says when that is not what is counted.
int weight_bytes(const Config& config, std::vector<std::string>& notes) {
  const char* key = config.has("dtype") ? "dtype" : "torch_dtype";  // the newer name first
  if (!config.has(key)) {
    notes.push_back("config names no weight type, taken as bfloat16");
    return 2;
  }
  const std::string type = config.text(key);
  if (type == "float32") {
    notes.push_back("config says float32, taken as bfloat16");
    return 2;
  }
  if (type != "bfloat16" && type != "float16") {
    config.wrong(key, "bfloat16, float16 or float32");
  }
  return 2;
}

/// Folder name of ".../Llama-3.1-8B/config.json", else the file's own.
std::string name_of(const Config& config) {
  if (config.has("_name_or_path") && !config.text("_name_or_path").empty()) {
    return config.text("_name_or_path");
  }
  const std::filesystem::path path(config.path());
  const std::string folder = path.parent_path().filename().string();
  return folder.empty() ? path.stem().string() : folder;
}

}  // namespace

Llm llm_from_config(const std::string& path) {
  const Config config = read_config(path);
  refuse_what_is_not_modelled(config);
  LlmDimensions d;
  d.architecture = find_architecture(config.text("model_type"), path + ": model_type");
  d.name = name_of(config);
  d.layers = config.size_above_0("num_hidden_layers");
  d.hidden = config.size_above_0("hidden_size");
  d.intermediate = config.size_above_0("intermediate_size");
  d.vocabulary = config.size_above_0("vocab_size");
  d.q_heads = config.size_above_0("num_attention_heads");
  d.kv_heads =
      config.has("num_key_value_heads") ? config.size_above_0("num_key_value_heads") : d.q_heads;
  if (!config.has("head_dim") && d.hidden % d.q_heads != 0) {
    config.wrong("num_attention_heads", "a divisor of hidden_size, or a head_dim");
  }
  d.head_dim = config.has("head_dim") ? config.size_above_0("head_dim") : d.hidden / d.q_heads;
  if (config.has("query_pre_attn_scalar")) {
    const double scalar = config.number("query_pre_attn_scalar");
    if (!(scalar > 0)) config.wrong("query_pre_attn_scalar", "a number above 0");
    d.scale = 1 / std::sqrt(scalar);
  }
  d.tied = config.flag_or("tie_word_embeddings", d.architecture.tied);
  d.attention_bias = d.architecture.reads_bias_keys && config.flag_or("attention_bias", false);
  d.mlp_bias = d.architecture.reads_bias_keys && config.flag_or("mlp_bias", false);
  d.max_context = config.integer_or("max_position_embeddings", 0);
  d.windows = windows_of(config, d.architecture, d.layers);
  std::vector<std::string> notes;
  d.weight_bytes_per_element = weight_bytes(config, notes);
  Llm llm = make_llm(d, path);
  llm.notes = std::move(notes);
  return llm;
}

}  // namespace kvsim
