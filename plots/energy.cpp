// Energy of one layer and step, item by item, on the GPU and each accelerator: the whole machine
// and the datapath alone, side by side, each on its own scale.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "plots/bars.h"
#include "plots/plot.h"

namespace kvsim {
namespace {

constexpr double kSlot = 22;
constexpr double kThickness = 11;
constexpr double kMachineGap = 76;  // from the axes of a machine to those of the next
constexpr double kFirstAxes = 28;   // from the end of the heading to the first axes
constexpr double kWholeLeft = 286;
constexpr double kWholeRight = 540;
constexpr double kDatapathLeft = 628;
constexpr double kDatapathRight = 882;

/// Colours of items: one hue for the first word ("dram", "score"), shades for what follows, in
/// order of first appearance.
class ItemColours {
 public:
  Colour of(const std::string& item) {
    const auto same = [&](const LegendItem& known) { return known.text == item; };
    const auto found = std::find_if(items_.begin(), items_.end(), same);
    if (found != items_.end()) return found->colour;
    const std::string family = item.substr(0, item.find(' '));
    const auto [entry, is_new] = families_.try_emplace(family, Family{families_.size(), 0});
    items_.push_back({item, shade(hue(entry->second.hue), entry->second.members++)});
    return items_.back().colour;
  }
  const std::vector<LegendItem>& items() const { return items_; }

 private:
  struct Family {
    std::size_t hue = 0;
    std::size_t members = 0;
  };
  std::map<std::string, Family> families_;
  std::vector<LegendItem> items_;
};

/// The bars of one machine.
struct Machine {
  std::string title;
  bool accelerator = false;
  std::vector<Bar> whole;
  std::vector<Bar> datapath;
};

/// The datapath is one segment of the whole bar, where its first item stands.
void add_bars(const MethodLabel& label, const JsonNode& energy, Machine& machine,
              ItemColours& whole, ItemColours& datapath) {
  Bar all{label, {}, energy.at("total_pj").interval(), {}};
  Bar part{label, {}, energy.at("datapath_pj").interval(), {}};
  for (const JsonNode& entry : energy.at("items").items()) {
    const std::string item = entry.at("item").text();
    const double pj = entry.at("pj").number();
    if (!entry.at("datapath").boolean()) {
      all.segments.push_back({pj, whole.of(item), "", ""});
      continue;
    }
    if (part.segments.empty()) {
      all.segments.push_back({part.total.value, whole.of("datapath"), "", ""});
    }
    part.segments.push_back({pj, datapath.of(item), "", ""});
  }
  machine.whole.push_back(std::move(all));
  machine.datapath.push_back(std::move(part));
}

std::string accelerator_title(const JsonNode& accelerator) {
  std::string title = accelerator.at("name").text();
  if (accelerator.has("node_nm"))
    title += fmt::format(", {:g} nm", accelerator.at("node_nm").number());
  if (accelerator.has("memory")) title += ", " + accelerator.at("memory").text();
  if (accelerator.has("title")) title += ": " + accelerator.at("title").text();
  return title;
}

std::vector<Machine> machines_of(const Document& document, ItemColours& whole,
                                 ItemColours& datapath) {
  const std::vector<JsonNode> methods = document.methods();
  std::vector<Machine> machines;
  if (document.root().has("gpu")) {
    machines.push_back({document.gpu_title(), false, {}, {}});
    for (const JsonNode& method : methods) {
      add_bars(method_label(method), method.at("energy"), machines.back(), whole, datapath);
    }
  }
  const JsonNode first = methods.front().at("accelerators");
  for (std::size_t i = 0; i < first.items().size(); ++i) {
    machines.push_back({accelerator_title(first.items()[i]), true, {}, {}});
    for (const JsonNode& method : methods) {
      const JsonNode list = method.at("accelerators");
      if (list.items().size() != first.items().size()) {
        list.fail_with("has another length than that of the first method");
      }
      add_bars(method_label(method), list.items()[i], machines.back(), whole, datapath);
    }
  }
  if (machines.empty()) document.root().fail_with("no GPU and no accelerator, no energy to draw");
  return machines;
}

/// Ends of the two axes. Accelerators share theirs, so that they can be compared by eye.
struct Scale {
  double whole = 0;
  double datapath = 0;
};

Scale scale_of(const std::vector<Machine>& machines, bool accelerators) {
  Scale scale;
  for (const Machine& machine : machines) {
    if (machine.accelerator != accelerators) continue;
    scale.whole = std::max(scale.whole, largest_value(machine.whole));
    scale.datapath = std::max(scale.datapath, largest_value(machine.datapath));
  }
  return scale;
}

void draw_machine(Figure& figure, const Machine& machine, const Scale& scale, double top) {
  figure.text(Figure::kMargin, top - 15,
              fit_text(machine.title, 11, Figure::kWidth - 2 * Figure::kMargin, true),
              {.bold = true});
  const double bottom = top + kSlot * static_cast<double>(machine.whole.size());
  draw_bars(figure, machine.whole,
            {.area = {kWholeLeft, top, kWholeRight, bottom},
             .labels = LabelStyle::kOneLine,
             .thickness = kThickness,
             .unit = "pJ",
             .axis_label = "whole machine",
             .largest = scale.whole});
  draw_bars(figure, machine.datapath,
            {.area = {kDatapathLeft, top, kDatapathRight, bottom},
             .thickness = kThickness,
             .unit = "pJ",
             .axis_label = "datapath alone",
             .largest = scale.datapath});
}

Figure draw(const Document& document) {
  ItemColours whole;
  ItemColours datapath;
  const std::vector<Machine> machines = machines_of(document, whole, datapath);
  const double rows = kSlot * static_cast<double>(document.methods().size());
  const double first = Figure::heading_bottom(1) + kFirstAxes;
  const double legend = first + static_cast<double>(machines.size()) * (rows + kMachineGap) - 22;
  const Area whole_legend{kWholeLeft, legend, kDatapathLeft - 20, 0};
  const Area datapath_legend{kDatapathLeft, legend, Figure::kWidth - Figure::kMargin, 0};
  const double bottom = std::max(draw_legend(nullptr, whole.items(), whole_legend),
                                 draw_legend(nullptr, datapath.items(), datapath_legend));
  Figure figure(std::ceil(bottom + 34));
  figure.heading("Energy of attention, per layer and step", {document.trace_title()});
  for (std::size_t i = 0; i < machines.size(); ++i) {
    draw_machine(figure, machines[i], scale_of(machines, machines[i].accelerator),
                 first + static_cast<double>(i) * (rows + kMachineGap));
  }
  draw_legend(&figure, whole.items(), whole_legend);
  draw_legend(&figure, datapath.items(), datapath_legend);
  figure.footnote(
      "whiskers: 90 % intervals; accelerators share their scales, the GPU and both columns have "
      "their own");
  return figure;
}

KVSIM_REGISTER_PLOT("energy", {"energy by item on GPU and accelerators, whole and datapath", draw});

}  // namespace
}  // namespace kvsim
