#include "core/error.h"
#include "core/text_file.h"
#include "traces/trace_format.h"

namespace kvsim::trace_format {
namespace {

/// What an array of a method may be; what it means only the method knows.
void check_array(const hdf5::File& file, const std::string& object) {
  const hdf5::Dataset dataset = file.open_dataset(object);
  if (dataset.type() != hdf5::NumberType::kInt32) {
    fail<RuntimeError>("{}: {}: type is {}, expected int32", file.path(), object,
                       dataset.type_text());
  }
  if (dataset.extent().size() != 1) {
    fail<RuntimeError>("{}: {}: shape is {}, expected one dimension", file.path(), object,
                       hdf5::to_string(dataset.extent()));
  }
  dataset.checked_bytes();
}

void check_state(const hdf5::File& file, const std::string& group, const LayerInfo& layer) {
  if (!is_utf8(group)) fail<RuntimeError>("{}: {}: the name is not UTF-8", file.path(), group);
  if (!file.is_group(group)) fail<RuntimeError>("{}: {}: expected a group", file.path(), group);
  if (!file.has_attribute(group, "settings")) {
    fail<RuntimeError>("{}: {}: attribute 'settings' is missing", file.path(), group);
  }
  if (!is_utf8(file.string_attribute(group, "settings"))) {
    fail<RuntimeError>("{}: {}: attribute 'settings' is not UTF-8", file.path(), group);
  }
  const std::size_t found = file.children(group).size();
  if (found != static_cast<std::size_t>(layer.kv_heads)) {
    fail<RuntimeError>("{}: {}: holds {} groups, expected one for each KV head: {}", file.path(),
                       group, found, layer.kv_heads);
  }
  for (int head = 0; head < layer.kv_heads; ++head) {
    const std::string of_head = fmt::format("{}/{}", group, head);
    if (!file.is_group(of_head)) {
      fail<RuntimeError>("{}: {}: expected a group", file.path(), of_head);
    }
    for (const std::string& name : file.children(of_head)) {
      const std::string object = fmt::format("{}/{}", of_head, name);
      if (!is_utf8(name)) fail<RuntimeError>("{}: {}: the name is not UTF-8", file.path(), object);
      check_array(file, object);
    }
  }
}

}  // namespace

bool check_prepared(const hdf5::File& file, const LayerInfo& layer, const Report& report) {
  const std::string group = state_group(layer.layer);
  if (!file.exists(group)) return true;
  bool good = true;
  for (const std::string& method : file.children(group)) {
    try {
      check_state(file, group + "/" + method, layer);
    } catch (const RuntimeError& error) {
      report(error.what());
      good = false;
    }
  }
  return good;
}

PreparedStates read_prepared(const hdf5::File& file, const LayerInfo& layer) {
  PreparedStates result;
  const std::string group = state_group(layer.layer);
  if (!file.exists(group)) return result;
  for (const std::string& method : file.children(group)) {
    const std::string of_method = group + "/" + method;
    PreparedState& state = result[method];
    state.settings = file.string_attribute(of_method, "settings");
    for (int head = 0; head < layer.kv_heads; ++head) {
      const std::string of_head = fmt::format("{}/{}", of_method, head);
      PreparedState::Arrays& arrays = state.heads.emplace_back();
      for (const std::string& name : file.children(of_head)) {
        arrays[name] = file.open_dataset(of_head + "/" + name).read<std::int32_t>();
      }
    }
  }
  return result;
}

}  // namespace kvsim::trace_format
