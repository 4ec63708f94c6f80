#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/estimate.h"
#include "kernels/shape.h"
#include "models/machine.h"
#include "models/memory/traffic.h"

namespace kvsim {

/// A decoder-only transformer, from a preset or a Hugging Face config.json.
struct Llm {
  std::string name;
  int layers = 0;
  int hidden = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int v_head_dim = 0;
  double scale = 0;                   // softmax scale
  std::vector<std::int64_t> windows;  // per layer, 0 = full attention
  std::int64_t max_context = 0;
  int weight_bytes_per_element = 2;
  double stored_weight_bytes = 0;    // all parameters
  double streamed_weight_bytes = 0;  // what one decode step reads (no input embedding table)
  double kv_bytes_per_token = 0;     // all layers
  int tensor_parallel = 1;           // GPUs that share it: heads and bytes are those of one
  std::vector<std::string> notes;    // e.g. "config says float32, taken as bfloat16"
};

/// Throws RuntimeError naming file and key for a missing or impossible value.
Llm llm_from_config(const std::string& path);

/// One GPU's share of a model on `gpus` of them: query heads, weights and KV heads are divided, and
/// KV heads replicated where there are more GPUs than heads. Throws UsageError if heads do not
/// divide.
Llm share_of_llm(const Llm& llm, int gpus);

/// What a model and its cache fill of a machine's memory. Activations, and what a serving engine
/// keeps for itself, come on top.
struct MemoryNeed {
  double weight_bytes = 0;    // all parameters
  double kv_bytes = 0;        // K and V of all layers and sequences
  double capacity_bytes = 0;  // 0 = not known

  double needed_bytes() const { return weight_bytes + kv_bytes; }
  bool fits() const { return needed_bytes() <= capacity_bytes; }
};

/// For `batch` sequences of `context` tokens. A layer with a window keeps the window's rows; a
/// paged cache is filled with whole pages.
MemoryNeed memory_need(const Llm& llm, const MemorySystem& memory, const KvFormat& format,
                       const CacheLayout& layout, std::int64_t context, double batch);

/// Some layers and how long their attention takes.
struct LayersAndTime {
  int layers = 0;
  Estimate attention_us;
};

struct DecodeStep {
  Estimate weights_us;     // projections, MLP, norms, head: weight bytes / reachable bandwidth
  Estimate all_reduce_us;  // two per layer over the GPUs that share the model
  Estimate dense_us;       // whole step with dense attention
  Estimate method_us;
  Estimate speedup;            // dense / method (Amdahl)
  double attention_share = 0;  // of the dense step
};

/// The decode step of the whole model for one token per sequence. `dense` and `method` cover all
/// layers (counts add up to llm.layers); `batch` sequences share one pass over the weights.
DecodeStep decode_step(const Llm& llm, const Machine& machine, double batch,
                       std::span<const LayersAndTime> dense, std::span<const LayersAndTime> method);

/// Amdahl's law on bytes (SANTA paper §3.5): 1 / (w/(w+k) + (k/(w+k))/s).
double amdahl_speedup(double weight_bytes, double kv_bytes, double attention_speedup);

}  // namespace kvsim
