#include "plots/plot.h"

#include "sim/cli/list_kind.h"

namespace kvsim {
namespace {

Json plot_items(const CommandLine&) {
  Json items = Json::array();
  for (const std::string& name : plot_registry().names()) {
    items.push_back({{"name", name}, {"title", plot_registry().at(name).summary}});
  }
  return items;
}

KVSIM_REGISTER_LIST_KIND("plots", {plot_items, titles_text});

}  // namespace

Registry<Plot>& plot_registry() {
  static Registry<Plot> registry("kind of plot");
  return registry;
}

}  // namespace kvsim
