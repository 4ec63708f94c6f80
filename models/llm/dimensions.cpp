#include "models/llm/dimensions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace kvsim {
namespace {

using Windows = Architecture::Windows;

// From the configuration and modeling files of Hugging Face transformers.
constexpr std::array<Architecture, 8> kArchitectures{{
    {.name = "llama", .reads_bias_keys = true},
    {.name = "mistral", .windows = Windows::kAll},
    {.name = "qwen2", .qkv_bias = true, .windows = Windows::kFromMaxWindowLayers},
    {.name = "qwen3",
     .reads_bias_keys = true,
     .qk_norm = true,
     .windows = Windows::kFromMaxWindowLayers},
    {.name = "phi3", .windows = Windows::kAll},
    {.name = "gemma", .tied = true, .reads_bias_keys = true},
    {.name = "gemma2",
     .tied = true,
     .reads_bias_keys = true,
     .norms = 4,
     .windows = Windows::kAllButEveryNth,
     .every = 2},
    {.name = "gemma3_text",
     .tied = true,
     .reads_bias_keys = true,
     .qk_norm = true,
     .norms = 4,
     .windows = Windows::kAllButEveryNth,
     .every = 6},
}};

double parameters_of_layer(const LlmDimensions& d) {
  const double hidden = d.hidden;
  const double q = static_cast<double>(d.q_heads) * d.head_dim;
  const double kv = static_cast<double>(d.kv_heads) * d.head_dim;
  double sum = hidden * (q + 2 * kv) + q * hidden;  // projections
  sum += 3 * hidden * d.intermediate;               // gate, up, down
  sum += d.architecture.norms * hidden;
  if (d.architecture.qk_norm) sum += 2.0 * d.head_dim;
  if (d.architecture.qkv_bias || d.attention_bias) sum += q + 2 * kv;
  if (d.attention_bias) sum += hidden;
  if (d.mlp_bias) sum += 2.0 * d.intermediate + hidden;
  return sum;
}

void check(const LlmDimensions& d, std::string_view where) {
  const std::array<std::pair<const char*, std::int64_t>, 7> sizes{{{"layers", d.layers},
                                                                   {"hidden", d.hidden},
                                                                   {"intermediate", d.intermediate},
                                                                   {"vocabulary", d.vocabulary},
                                                                   {"q_heads", d.q_heads},
                                                                   {"kv_heads", d.kv_heads},
                                                                   {"head_dim", d.head_dim}}};
  for (const auto& [name, size] : sizes) {
    if (size <= 0) fail<RuntimeError>("{}: {} is {}, expected above 0", where, name, size);
  }
  if (d.q_heads % d.kv_heads != 0) {
    fail<RuntimeError>("{}: {} query heads are no multiple of {} KV heads", where, d.q_heads,
                       d.kv_heads);
  }
}

}  // namespace

const Architecture& find_architecture(std::string_view name, std::string_view where) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture;
  }
  std::vector<std::string_view> known;
  for (const Architecture& architecture : kArchitectures) known.push_back(architecture.name);
  fail<RuntimeError>("{}: architecture '{}' is not supported yet, expected one of {}", where, name,
                     fmt::join(known, ", "));
}

double streamed_parameters(const LlmDimensions& d) {
  const double table = static_cast<double>(d.vocabulary) * d.hidden;
  return d.layers * parameters_of_layer(d) + d.hidden + table;  // layers, last norm, head
}

double stored_parameters(const LlmDimensions& d) {
  const double table = static_cast<double>(d.vocabulary) * d.hidden;
  return streamed_parameters(d) + (d.tied ? 0 : table);
}

Llm make_llm(const LlmDimensions& d, std::string_view where) {
  check(d, where);
  Llm llm;
  llm.name = d.name;
  llm.layers = d.layers;
  llm.hidden = d.hidden;
  llm.q_heads = d.q_heads;
  llm.kv_heads = d.kv_heads;
  llm.head_dim = llm.v_head_dim = d.head_dim;
  llm.scale = d.scale > 0 ? d.scale : 1 / std::sqrt(static_cast<double>(d.head_dim));
  llm.windows = d.windows;
  llm.windows.resize(static_cast<std::size_t>(d.layers), 0);
  llm.max_context = d.max_context;
  llm.weight_bytes_per_element = d.weight_bytes_per_element;
  llm.stored_weight_bytes = stored_parameters(d) * d.weight_bytes_per_element;
  llm.streamed_weight_bytes = streamed_parameters(d) * d.weight_bytes_per_element;
  const double row = 2.0 * d.head_dim * d.weight_bytes_per_element;  // K and V
  llm.kv_bytes_per_token = static_cast<double>(d.layers) * d.kv_heads * row;
  return llm;
}

}  // namespace kvsim
