// kvsim list: what there is to choose from.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/table.h"
#include "kernels/method.h"
#include "models/presets.h"
#include "sim/cli/command_line.h"
#include "sim/cli/verb.h"
#include "sim/cli/version.h"
#include "sim/json.h"

namespace kvsim {
namespace {

constexpr std::array<std::string_view, 5> kPresetKinds{"gpus", "memories", "nodes", "accelerators",
                                                       "llms"};

Json method_items() {
  Json items = Json::array();
  for (const std::string& name : method_registry().names()) {
    const MethodInfo& info = method_registry().at(name);
    if (info.hidden) continue;
    Json parameters = Json::array();
    for (const Parameter& parameter : info.parameters) {
      parameters.push_back({{"name", parameter.name},
                            {"default", json_of_parameter(parameter.default_value)},
                            {"unit", parameter.unit},
                            {"help", parameter.help}});
    }
    items.push_back({{"name", name},
                     {"summary", info.summary},
                     {"source", info.source},
                     {"parameters", std::move(parameters)}});
  }
  return items;
}

Json preset_items(const std::string& kind, const Presets& presets) {
  Json items = Json::array();
  for (const std::string& name : presets.names(kind)) {
    items.push_back({{"name", name}, {"title", presets.title(kind, name)}});
  }
  return items;
}

std::string value_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string methods_text(const Json& items) {
  std::string text;
  for (const Json& method : items) {
    text += fmt::format("{}: {}\n  {}\n", method.at("name").get<std::string>(),
                        method.at("summary").get<std::string>(),
                        method.at("source").get<std::string>());
    for (const Json& parameter : method.at("parameters")) {
      text +=
          fmt::format("    {}={}  [{}]  {}\n", parameter.at("name").get<std::string>(),
                      value_text(parameter.at("default")), parameter.at("unit").get<std::string>(),
                      parameter.at("help").get<std::string>());
    }
    text += "\n";
  }
  return text;
}

std::string presets_text(const Json& items) {
  std::size_t width = 0;
  for (const Json& item : items) {
    width = std::max(width, display_width(item.at("name").get<std::string>()));
  }
  std::string text;
  for (const Json& item : items) {
    text += fmt::format("{:<{}}  {}\n", item.at("name").get<std::string>(), width,
                        item.at("title").get<std::string>());
  }
  return text;
}

void run(const std::vector<std::string>& words) {
  CommandLine line("list methods|gpus|memories|nodes|accelerators|llms",
                   "Names to choose from, with parameters, defaults, units and sources.");
  line.take_positional("kind", "what to list");
  if (!line.parse(words)) return;
  const std::vector<std::string> kinds = line.list("kind");
  const bool known = kinds.size() == 1 &&
                     (kinds[0] == "methods" || std::find(kPresetKinds.begin(), kPresetKinds.end(),
                                                         kinds[0]) != kPresetKinds.end());
  if (!known) {
    fail<UsageError>("found '{}', expected one of: methods, {}", fmt::join(kinds, " "),
                     fmt::join(kPresetKinds, ", "));
  }
  const bool methods = kinds[0] == "methods";
  const Json items = methods ? method_items() : preset_items(kinds[0], Presets(line.presets()));
  if (line.json()) {
    return print_document(Json{
        {"schema", "kvsim.list/1"}, {"version", version()}, {"kind", kinds[0]}, {"items", items}});
  }
  print_text(methods ? methods_text(items) : presets_text(items));
}

KVSIM_REGISTER_VERB("list",
                    {"methods, gpus, memories, nodes, accelerators or llms to choose from", run});

}  // namespace
}  // namespace kvsim
