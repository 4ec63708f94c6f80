// Places on paper: nothing may cover anything else.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/error.h"
#include "plots/axis.h"
#include "plots/layout.h"
#include "plots/plot.h"
#include "tests/catch.h"
#include "tests/plots/small_document.h"

using namespace kvsim;
using namespace kvsim::testing;

namespace {

Area area_of(const PlacedText& placed) {
  const double width = text_width(placed.text, placed.style.size, placed.style.bold);
  const double height = placed.style.size;
  const double before = placed.style.align == Align::kLeft    ? 0
                        : placed.style.align == Align::kRight ? width
                                                              : width / 2;
  if (placed.style.upright) {
    return {placed.x - height / 2, placed.y - width / 2, placed.x + height / 2,
            placed.y + width / 2};
  }
  return {placed.x - before, placed.y - height / 2, placed.x - before + width,
          placed.y + height / 2};
}

bool overlap(const Area& a, const Area& b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

/// As many methods as asked for, some of them alike.
Json many_methods(std::size_t methods) {
  Json document = small_document();
  const Json three = document["methods"];
  document["methods"] = Json::array();
  for (std::size_t i = 0; i < methods; ++i) {
    Json method = three[i % 3];
    method["spec"] = "santa-prop:samples=128,mode=released,tile=" + std::to_string(i);
    method["params"] = {{"samples", 128}, {"tile", i}};
    method["error"]["relative_l2"]["mean"] = 0.1 + 1e-4 * static_cast<double>(i);
    document["methods"].push_back(method);
  }
  return document;
}

}  // namespace

TEST_CASE("no text covers another or leaves the sheet") {
  const Folder folder;
  for (const std::size_t methods : {1U, 7U, 20U}) {
    const Document document(folder.write("run.json", many_methods(methods).dump()));
    for (const std::string& kind : plot_registry().names()) {
      const Figure figure = plot_registry().at(kind).draw(document);
      const std::vector<PlacedText>& texts = figure.texts();
      CHECK(texts.size() > 10);
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const Area area = area_of(texts[i]);
        INFO(kind << ", " << methods << " methods: " << texts[i].text);
        CHECK((area.left >= 0 && area.right <= Figure::kWidth));
        CHECK((area.top >= 0 && area.bottom <= figure.height()));
        for (std::size_t j = 0; j < i; ++j) {
          INFO(texts[j].text);
          CHECK_FALSE(overlap(area, area_of(texts[j])));
        }
      }
    }
  }
}

TEST_CASE("spread keeps order, distance and bounds, and moves nothing without need") {
  CHECK(spread({}, 10, 0, 100).empty());
  CHECK(spread({5, 50, 95}, 10, 0, 100) == std::vector<double>{5, 50, 95});
  CHECK(spread({50, 50}, 10, 0, 100) == std::vector<double>{45, 55});
  CHECK(spread({60, 40, 52}, 10, 0, 100) == std::vector<double>{61, 40, 51});
  CHECK(spread({-20, 0, 0}, 10, 0, 100) == std::vector<double>{0, 10, 20});
  CHECK(spread({100, 100, 130}, 10, 0, 100) == std::vector<double>{80, 90, 100});
}

TEST_CASE("units get the prefix that makes numbers readable") {
  CHECK(readable_unit(4.2e8, "pJ").name == "\u00b5J");
  CHECK(readable_unit(4.2e8, "pJ").factor == Approx(1e-6));
  CHECK(readable_unit(1.2e9, "pJ").name == "mJ");
  CHECK(readable_unit(0.3, "\u00b5s").name == "ns");
  CHECK(readable_unit(20, "\u00b5s").name == "\u00b5s");
  CHECK(readable_unit(2e7, "\u00b5s").name == "s");
  CHECK(readable_unit(0, "pJ").name == "pJ");
}

TEST_CASE("numbers have three digits") {
  CHECK(number_label(0) == "0");
  CHECK(number_label(4.6e-7) == "4.6e-07");
  CHECK(number_label(0.12) == "0.120");
  CHECK(number_label(1.0) == "1.00");
  CHECK(number_label(53.18) == "53.2");
  CHECK(number_label(1452.4) == "1452");
  CHECK(grouped_integer(7) == "7");
  CHECK(grouped_integer(30273) == "30,273");
  CHECK(grouped_integer(1048576) == "1,048,576");
}

TEST_CASE("texts that are too long end in an ellipsis") {
  CHECK(fit_text("short", 10, 100) == "short");
  const std::string cut = fit_text("a name that is much too long", 10, 80);
  CHECK(text_width(cut, 10) <= 80);
  CHECK_THAT(cut, ContainsSubstring("\u2026"));
  CHECK(fit_text("\u00b5\u00b5\u00b5\u00b5", 10, 25) == "\u00b5\u00b5\u2026");
  CHECK(fit_text("nothing fits", 10, 1) == "");
}

TEST_CASE("axes have a readable number of tics inside their range") {
  for (const double low : {1e-9, 3e-4, 0.07, 0.5, 47.0}) {
    for (const double factor : {1.3, 2.0, 7.0, 50.0, 1e3, 1e7}) {
      const double high = low * factor;
      for (const Axis& axis : {logarithmic_axis(low, high, ""), linear_axis(0, high, "")}) {
        INFO(low << " to " << high << (axis.logarithmic ? ", logarithmic" : ""));
        CHECK(axis.tics.size() >= 3);
        CHECK(axis.tics.size() <= 13);
        for (const Tic& tic : axis.tics) {
          CHECK(axis.fraction(tic.value) >= -1e-9);
          CHECK(axis.fraction(tic.value) <= 1 + 1e-9);
        }
      }
    }
  }
  const Axis axis = logarithmic_axis(1, 100, "");
  CHECK(axis.fraction(1) == 0);
  CHECK(axis.fraction(10) == Approx(0.5));
  CHECK(axis.fraction(100) == 1);
}

TEST_CASE("methods look different from each other") {
  for (std::size_t i = 0; i < 56; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Look a = method_look(i);
      const Look b = method_look(j);
      CHECK_FALSE((a.colour == b.colour && a.marker == b.marker));
    }
  }
  CHECK(hex(shade(0x0072B2, 0)) == "#0072B2");
  CHECK(hex(kWhite, 0.5) == "#80FFFFFF");
}

TEST_CASE("the extension says which image it is") {
  CHECK(image_format("a.b/x.svg") == ImageFormat::kSvg);
  CHECK(image_format("x.png") == ImageFormat::kPng);
  CHECK_THROWS_AS(image_format("x.pdf"), UsageError);
  CHECK_THROWS_WITH(image_format("svg"), ContainsSubstring(".svg, .png"));
}
