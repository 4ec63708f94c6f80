#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "traces/rows_view.h"

namespace kvsim {

/// A dense array in host memory, row-major, in the type it was stored in.
struct HostTensor {
  ElementType type = ElementType::kFloat32;
  std::array<std::int64_t, 3> shape{};  // leading dimensions are 1 where the tensor has fewer
  std::vector<std::byte> data;

  std::int64_t elements() const { return shape[0] * shape[1] * shape[2]; }
  /// The rows of `data` under the leading index `i`: [shape[1], shape[2]].
  RowsView rows(std::int64_t i) const {
    return {data.data() + i * shape[1] * shape[2] * bytes_of(type), type, shape[1],
            static_cast<int>(shape[2]), shape[2]};
  }
};

enum class KvLayout {
  kHeads,
  kLatent
};  // latent: one dataset kv, V = its first v_head_dim columns

/// Attributes of one layer (docs/formats.md); root attributes of the file are the defaults.
struct LayerInfo {
  int layer = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int v_head_dim = 0;
  double scale = 0;         // logits = scale * q.k
  std::int64_t window = 0;  // tokens seen, the current one included; 0 = all
  double logit_cap = 0;     // logits = cap * tanh(logits / cap); 0 = none
  KvLayout layout = KvLayout::kHeads;
  ElementType kv_type = ElementType::kFloat32;

  int group() const { return q_heads / kv_heads; }
};

/// What a trace says of itself.
struct TraceInfo {
  std::string path;
  std::string model;
  std::string source;
  std::string license;
  std::int64_t prompt_tokens = 0;
  std::int64_t decode_steps = 0;
  std::string rope;  // applied | none
  double rope_theta = 0;
  std::string rope_scaling;
  int rotary_dim = 0;
  bool synthetic = false;
  std::vector<LayerInfo> layers;  // ascending by layer

  std::int64_t tokens() const { return prompt_tokens + decode_steps; }
};

/// What a model learned for a method, by name: /layers/<i>/parameters/<name> (docs/formats.md).
using LearnedParameters = std::map<std::string, HostTensor, std::less<>>;

/// What a method prepared from the prompt, kept with the trace, by method:
/// /layers/<i>/state/<method> (docs/formats.md). The settings are the method's own words for how;
/// what the arrays mean is its own affair, too.
struct PreparedState {
  using Arrays = std::map<std::string, std::vector<std::int32_t>, std::less<>>;  // by name

  std::string settings;
  std::vector<Arrays> heads;  // [kv_heads]

  friend bool operator==(const PreparedState&, const PreparedState&) = default;
};
using PreparedStates = std::map<std::string, PreparedState, std::less<>>;

/// One layer in memory. Step s attends to the first prompt_tokens + s + 1 rows.
struct TraceLayer {
  LayerInfo info;
  HostTensor k;                      // [kv_heads, tokens, head_dim]; latent: [1, tokens, head_dim]
  HostTensor v;                      // [kv_heads, tokens, v_head_dim]; latent: empty
  HostTensor q;                      // [decode_steps, q_heads, head_dim], after RoPE, unscaled
  std::optional<HostTensor> output;  // [decode_steps, q_heads, v_head_dim], the model's own
  std::optional<HostTensor> probe;   // [n, q_heads, head_dim], the last n prompt queries
  std::optional<HostTensor> attention_sum;  // [1, q_heads, prompt_tokens] float32
  std::vector<float> sink_logits;           // [q_heads] or empty
  LearnedParameters learned;
  PreparedStates prepared;

  RowsView keys(int kv_head) const {
    return k.rows(info.layout == KvLayout::kLatent ? 0 : kv_head);
  }
  RowsView values(int kv_head) const {
    if (info.layout == KvLayout::kHeads) return v.rows(kv_head);
    RowsView view = k.rows(0);
    view.dim = info.v_head_dim;
    return view;
  }
  /// A head's last prompt queries, [n, head_dim]; only where there is a probe.
  RowsView probe_queries(int head) const {
    RowsView view = probe->rows(0);
    view.data = view.row(head);
    view.rows = probe->shape[0];
    view.stride = probe->shape[1] * probe->shape[2];
    return view;
  }
  /// Queries of all heads at a step: [q_heads, head_dim].
  RowsView queries(std::int64_t step) const { return q.rows(step); }
};

}  // namespace kvsim
