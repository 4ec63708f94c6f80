// Predicted latency of one layer and step, term by term.

#include "models/time/latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "plots/bars.h"
#include "plots/plot.h"

namespace kvsim {
namespace {

constexpr double kSlot = 48;
constexpr double kLeft = 216;
constexpr double kRight = 800;

/// What stands for "stage: boundary" in a key: the boundary; for a stage, the stage.
struct Term {
  std::string name;
  bool boundary = false;
};

Term term_of(const std::string& stage) {
  const std::size_t colon = stage.find(": ");
  if (colon == std::string::npos) return {stage, false};
  return {stage.substr(colon + 2), true};
}

/// Names by the number that stands for them inside the bars, in order of appearance.
class Key {
 public:
  std::string number(const std::string& name) {
    auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) found = names_.insert(names_.end(), name);
    return fmt::format("{}", found - names_.begin() + 1);
  }
  /// "1 kernel_launch   2 stream_kv …" in lines of the figure's width.
  std::vector<std::string> lines() const {
    std::vector<std::string> lines{""};
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const std::string entry = fmt::format("{} {}", i + 1, names_[i]);
      const std::string longer = lines.back().empty() ? entry : lines.back() + "     " + entry;
      if (text_width(longer, 10) > Figure::kWidth - 2 * Figure::kMargin - 60) {
        lines.push_back(entry);
      } else {
        lines.back() = longer;
      }
    }
    return lines;
  }

 private:
  std::vector<std::string> names_;
};

struct LimitLook {
  Limit limit;
  Colour colour;
  std::string_view title;
};
constexpr std::array<LimitLook, 4> kLimits{{{Limit::kDram, 0x0072B2, "DRAM"},
                                            {Limit::kCache, 0x56B4E9, "L2"},
                                            {Limit::kCompute, 0xE69F00, "compute"},
                                            {Limit::kLatency, 0x8C6BB1, "latency"}}};

std::size_t limit_index(const JsonNode& limit) {
  const std::string name = limit.text();
  for (std::size_t i = 0; i < kLimits.size(); ++i) {
    if (name == to_string(kLimits[i].limit)) return i;
  }
  limit.fail_with(fmt::format("'{}' is no limit that this picture knows", name));
}

Colour term_colour(std::size_t limit, bool boundary) {
  return shade(kLimits[limit].colour, boundary ? 2 : 0);
}

/// All bars, with the key of their terms and the limits that occur in and between stages.
struct Content {
  std::vector<Bar> bars;
  Key key;
  std::array<std::array<bool, kLimits.size()>, 2> occurs{};
  bool measured = false;
};

Content content_of(const Document& document) {
  Content content;
  for (const JsonNode& method : document.methods()) {
    const JsonNode time = method.at("time");
    Bar bar{method_label(method), {}, time.at("predicted_us").interval(), {}};
    if (time.has("measured_us")) {
      bar.measured = time.at("measured_us").at("value").number();
      content.measured = true;
    }
    for (const JsonNode& entry : time.at("terms").items()) {
      const Term term = term_of(entry.at("stage").text());
      const std::size_t limit = limit_index(entry.at("limit"));
      content.occurs[term.boundary ? 1 : 0][limit] = true;
      const std::string number = content.key.number(term.name);
      bar.segments.push_back({entry.at("us").number(), term_colour(limit, term.boundary),
                              number + " " + term.name, number});
    }
    content.bars.push_back(std::move(bar));
  }
  return content;
}

std::vector<LegendItem> legend_of(const Content& content) {
  std::vector<LegendItem> items;
  for (const bool boundary : {false, true}) {
    for (std::size_t limit = 0; limit < kLimits.size(); ++limit) {
      if (!content.occurs[boundary ? 1 : 0][limit]) continue;
      items.push_back({fmt::format("{}{}", kLimits[limit].title, boundary ? " between stages" : ""),
                       term_colour(limit, boundary)});
    }
  }
  return items;
}

Figure draw(const Document& document) {
  const Content content = content_of(document);
  const std::vector<std::string> key = content.key.lines();
  const double top = Figure::heading_bottom(2) + 34;
  const double bottom = top + kSlot * static_cast<double>(content.bars.size());
  const double height = bottom + 62 + 16 * static_cast<double>(key.size()) + 24;
  Figure figure(height);
  figure.heading("Predicted latency of attention, per layer and step",
                 {document.trace_title(), document.gpu_title()});
  const double legend_top = Figure::heading_bottom(2) + 2;
  figure.text(Figure::kMargin, legend_top + 8.5, "bound by", {.size = 10, .colour = kFaintInk});
  draw_legend(&figure, legend_of(content), {Figure::kMargin + 62, legend_top, Figure::kWidth, 0});
  const BarStyle style{.area = {kLeft, top, kRight, bottom},
                       .labels = LabelStyle::kTwoLines,
                       .thickness = 26,
                       .unit = "\u00b5s",
                       .axis_label = "latency per layer and step",
                       .show_intervals = true};
  draw_bars(figure, content.bars, style);
  double y = bottom + 60;
  figure.text(Figure::kMargin, y, "terms", {.size = 10, .colour = kFaintInk});
  for (const std::string& line : key) {
    figure.text(Figure::kMargin + 62, y, line, {.size = 10});
    y += 16;
  }
  figure.footnote(fmt::format("whiskers and brackets: 90 % interval of the prediction{}",
                              content.measured ? "; diamonds: measured" : ""));
  return figure;
}

KVSIM_REGISTER_PLOT("latency", {"predicted latency by term, with its interval", draw});

}  // namespace
}  // namespace kvsim
