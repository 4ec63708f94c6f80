// kvsim list: what there is to choose from.

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/table.h"
#include "kernels/method.h"
#include "models/presets.h"
#include "sim/cli/list_kind.h"
#include "sim/cli/verb.h"
#include "sim/cli/version.h"

namespace kvsim {

std::string titles_text(const Json& items) {
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

namespace {

Json method_items(const CommandLine&) {
  Json items = Json::array();
  for (const std::string& name : method_registry().shown_names()) {
    const MethodInfo& info = method_registry().at(name);
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

/// The kinds that are folders of models/presets.
void register_presets(Registry<ListKind>& registry) {
  for (const char* kind : {"gpus", "memories", "nodes", "accelerators", "llms"}) {
    registry.add(kind, {[kind](const CommandLine& line) {
                          return preset_items(kind, Presets(line.presets()));
                        },
                        titles_text});
  }
}

void run(const std::vector<std::string>& words) {
  const auto& registry = list_kind_registry();
  const std::string kinds = fmt::format("{}", fmt::join(registry.names(), "|"));
  CommandLine line("list " + kinds,
                   "Names to choose from, with parameters, defaults, units and sources.");
  line.take_positional("kind", "what to list");
  if (!line.parse(words)) return;
  const std::vector<std::string> asked = line.list("kind");
  if (asked.size() != 1) {
    fail<UsageError>("found {} kinds, expected one of: {}", asked.size(),
                     fmt::join(registry.names(), ", "));
  }
  const ListKind& kind = registry.at(asked[0]);
  const Json items = kind.items(line);
  if (!line.json()) return print_text(kind.text(items));
  print_document({{"schema", "kvsim.list/1"},
                  {"version", version()},
                  {"commit", commit()},
                  {"kind", asked[0]},
                  {"items", items}});
}

KVSIM_REGISTER_VERB("list",
                    {"methods, GPUs, memories, nodes, accelerators, LLMs ... to choose from", run});

}  // namespace

Registry<ListKind>& list_kind_registry() {
  static Registry<ListKind> registry = [] {
    Registry<ListKind> kinds("kind");
    kinds.add("methods", {method_items, methods_text});
    register_presets(kinds);
    return kinds;
  }();
  return registry;
}

}  // namespace kvsim
