#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/llm/llm.h"

namespace kvsim {

/// What an architecture fixes that its configuration does not say (the code of Hugging Face
/// transformers does). Sizes come from the configuration.
struct Architecture {
  std::string_view name;         // model_type
  bool tied = false;             // default of tie_word_embeddings
  bool qkv_bias = false;         // always there
  bool reads_bias_keys = false;  // attention_bias (q, k, v, o) and mlp_bias
  bool qk_norm = false;          // one gain per head dimension for q and one for k
  int norms = 2;                 // per layer, of the hidden size
  /// Which layers have the configuration's sliding_window when no layer_types list says so.
  enum class Windows { kNone, kAll, kFromMaxWindowLayers, kAllButEveryNth };
  Windows windows = Windows::kNone;
  int every = 0;  // of kAllButEveryNth
};

/// Throws RuntimeError that lists the known ones; `where` names the file and key.
const Architecture& find_architecture(std::string_view name, std::string_view where);

/// Sizes of a decoder with gated MLPs and RMS norms, from which its parameters follow.
struct LlmDimensions {
  std::string name;
  Architecture architecture;
  int layers = 0;
  int hidden = 0;
  int intermediate = 0;
  std::int64_t vocabulary = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  double scale = 0;             // 0 = 1 / sqrt(head_dim)
  bool tied = false;            // one table for input and head
  bool attention_bias = false;  // of q, k, v and o
  bool mlp_bias = false;
  std::int64_t max_context = 0;
  std::vector<std::int64_t> windows;  // per layer
  int weight_bytes_per_element = 2;
};

/// All parameters, input embedding and head included.
double stored_parameters(const LlmDimensions& dimensions);
/// What one decode step reads: all but the input embedding table, of which it reads one row per
/// sequence. A tied table is the head too and is read whole.
double streamed_parameters(const LlmDimensions& dimensions);

/// Throws RuntimeError for sizes that cannot be (`where` names the file).
Llm make_llm(const LlmDimensions& dimensions, std::string_view where);

}  // namespace kvsim
