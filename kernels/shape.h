#pragma once

#include <cstdint>
#include <span>

namespace kvsim {

/// How a cache stores its elements: `bits` each, plus `scale_bytes` for every `scale_group`
/// elements (0 = no scales).
struct KvFormat {
  int bits = 16;
  int scale_bytes = 0;
  int scale_group = 0;

  double row_bytes(int dim) const {
    const double scales =
        scale_group > 0 ? static_cast<double>(dim) / scale_group * scale_bytes : 0;
    return dim * bits / 8.0 + scales;
  }
};

/// One layer's attention in one decode step, whole batch. `contexts` holds the tokens each sequence
/// sees, the current one included (after a layer's window was applied).
struct Shape {
  std::span<const std::int64_t> contexts = {};
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int v_head_dim = 0;
  bool latent = false;  // V is the first v_head_dim elements of the K row
  KvFormat kv_format = {};
  std::int64_t prompt_tokens = 0;  // fixes the tile rule of a trace; 0 = the longest context
  int activation_bytes = 2;        // an element of q and o

  int group() const { return q_heads / kv_heads; }
  double batch() const { return static_cast<double>(contexts.size()); }
  double total_context() const {
    double sum = 0;
    for (const std::int64_t n : contexts) sum += static_cast<double>(n);
    return sum;
  }
  double k_row_bytes() const { return kv_format.row_bytes(head_dim); }
  double v_row_bytes() const { return kv_format.row_bytes(v_head_dim); }
  /// From one V row to the next.
  double v_stride_bytes() const { return latent ? k_row_bytes() : v_row_bytes(); }
  double query_bytes() const { return batch() * q_heads * head_dim * activation_bytes; }
  double output_bytes() const { return batch() * q_heads * v_head_dim * activation_bytes; }
};

}  // namespace kvsim
