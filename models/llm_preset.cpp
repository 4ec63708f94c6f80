#include "core/preset_file.h"
#include "models/llm/dimensions.h"
#include "models/presets.h"

namespace kvsim {

Llm Presets::llm(const std::string& name) const {
  const std::string where = path("llms", name);
  const PresetFile file = PresetFile::parse(text("llms", name), where);
  const auto size = [&file](const char* key, const char* unit) {
    return static_cast<int>(file.integer(key, unit, 1, 1 << 30));
  };
  LlmDimensions d;
  d.name = name;
  file.text("title");
  d.architecture = find_architecture(file.text("architecture"), where + ": architecture");
  d.tied = file.flag("tied");
  d.layers = size("shape.layers", "layers");
  d.hidden = size("shape.hidden", "elements");
  d.intermediate = size("shape.intermediate", "elements");
  d.vocabulary = file.integer("shape.vocabulary", "tokens", 1, 1 << 30);
  d.q_heads = size("shape.q_heads", "heads");
  d.kv_heads = size("shape.kv_heads", "heads");
  d.head_dim = size("shape.head_dim", "elements");
  d.max_context = file.integer("shape.max_context", "tokens");
  d.weight_bytes_per_element = size("shape.weight", "B");
  if (file.has("shape.window")) {  // of every layer
    d.windows.assign(static_cast<std::size_t>(d.layers), file.integer("shape.window", "tokens"));
  }
  file.finish();
  return make_llm(d, where);
}

}  // namespace kvsim
