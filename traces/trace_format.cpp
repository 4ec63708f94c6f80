#include "traces/trace_format.h"

#include <algorithm>

#include "core/error.h"

namespace kvsim::trace_format {

Report throw_problems() {
  return [](const std::string& problem) { throw RuntimeError(problem); };
}

hdf5::NumberType number_type(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
      return hdf5::NumberType::kFloat16;
    case ElementType::kBfloat16:
      return hdf5::NumberType::kBfloat16;
    case ElementType::kFloat32:
      break;
  }
  return hdf5::NumberType::kFloat32;
}

std::optional<ElementType> element_type(hdf5::NumberType type) {
  switch (type) {
    case hdf5::NumberType::kFloat32:
      return ElementType::kFloat32;
    case hdf5::NumberType::kFloat16:
      return ElementType::kFloat16;
    case hdf5::NumberType::kBfloat16:
      return ElementType::kBfloat16;
    default:
      return std::nullopt;
  }
}

std::string layer_group(int layer) { return fmt::format("/layers/{}", layer); }

std::string parameters_group(int layer) { return layer_group(layer) + "/parameters"; }

std::string state_group(int layer) { return layer_group(layer) + "/state"; }

hdf5::Extent parameter_extent(const HostTensor& tensor) {
  const auto first = std::find_if(tensor.shape.begin(), tensor.shape.end() - 1,
                                  [](std::int64_t size) { return size != 1; });
  return {first, tensor.shape.end()};
}

TensorShape tensor_shape(const std::string& name, const TraceInfo& trace, const LayerInfo& layer) {
  const std::int64_t tokens = trace.tokens();
  const std::int64_t steps = trace.decode_steps;
  if (name == "k") {
    return {"k",
            {layer.kv_heads, tokens, layer.head_dim},
            "kv_heads, prompt_tokens + decode_steps, head_dim"};
  }
  if (name == "v") {
    return {"v",
            {layer.kv_heads, tokens, layer.v_head_dim},
            "kv_heads, prompt_tokens + decode_steps, v_head_dim"};
  }
  if (name == "kv") {
    return {"kv", {1, tokens, layer.head_dim}, "1, prompt_tokens + decode_steps, head_dim"};
  }
  if (name == "q") {
    return {"q", {steps, layer.q_heads, layer.head_dim}, "decode_steps, q_heads, head_dim"};
  }
  if (name == "o") {
    return {"o", {steps, layer.q_heads, layer.v_head_dim}, "decode_steps, q_heads, v_head_dim"};
  }
  if (name == "probe") {
    return {"probe", {-1, layer.q_heads, layer.head_dim}, "n, q_heads, head_dim"};
  }
  if (name == "attention_sum") {
    return {"attention_sum", {layer.q_heads, trace.prompt_tokens}, "q_heads, prompt_tokens"};
  }
  KVSIM_CHECK(name == "sink_logits");
  return {"sink_logits", {layer.q_heads}, "q_heads"};
}

}  // namespace kvsim::trace_format
