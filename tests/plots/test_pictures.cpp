// Every kind of picture, drawn by gnuplot from a small document.

#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/output_file.h"
#include "plots/gnuplot.h"
#include "plots/plot.h"
#include "tests/catch.h"
#include "tests/plots/small_document.h"

using namespace kvsim;
using namespace kvsim::testing;

namespace {

/// False, and says so, where nothing can be drawn.
bool can_draw() {
  const std::string problem = gnuplot_problem();
  if (!problem.empty()) WARN("SKIPPED: " << problem);
  return problem.empty();
}

/// The bytes of the picture of a file.
std::string picture(const Folder& folder, const std::string& result, const std::string& kind,
                    const std::string& extension) {
  const std::string path = folder.path(kind + extension);
  plot_registry().at(kind).draw(Document(result)).write(OutputFile(path, true), image_format(path));
  return read_bytes(path);
}

// What the axes of each kind must say.
const std::map<std::string, std::vector<std::string>> kUnits{
    {"error-bytes", {"% of dense attention", "relative L2 error", "samples=64, mode=released"}},
    {"error-samples", {"samples S", "relative L2 error", "DRAM bytes", "0.100 at S = 64"}},
    {"latency", {"latency per layer and step, \u00b5s", "kernel_launch", "DRAM", "compute"}},
    {"energy",
     {"whole machine, \u00b5J", "datapath alone, \u00b5J", "adders, 7 nm, HBM3E", "static"}},
    {"speedup", {"context, tokens", "decode-step speedup", "2,345 tokens", "tiny on NVIDIA"}}};

}  // namespace

TEST_CASE("every kind of picture has a test") {
  std::vector<std::string> tested;
  for (const auto& entry : kUnits) tested.push_back(entry.first);
  CHECK(plot_registry().names() == tested);
}

TEST_CASE("pictures say which methods, which trace and which units") {
  if (!can_draw()) return;
  const Folder folder;
  const std::string result = folder.write("run.json", small_document().dump());
  for (const auto& [kind, units] : kUnits) {
    const std::string svg = picture(folder, result, kind, ".svg");
    INFO(kind);
    CHECK_THAT(svg, ContainsSubstring("</svg>"));
    for (const char* text :
         {"dense", "topk", "keys=16", "santa-sys", "mode=released", "Tiny-1M", "NVIDIA H200 SXM"}) {
      CHECK_THAT(svg, ContainsSubstring(text));
    }
    for (const std::string& unit : units) CHECK_THAT(svg, ContainsSubstring(unit));
    CHECK_THAT(svg, !ContainsSubstring("synthetic"));
    CHECK_THAT(svg, !ContainsSubstring("GNUPLOT"));
    const std::string png = picture(folder, result, kind, ".png");
    CHECK(png.size() > 10000);
    CHECK(png.substr(1, 3) == "PNG");
  }
}

TEST_CASE("the same document gives the same bytes, from JSON and from a run file") {
  if (!can_draw()) return;
  const Folder folder;
  const std::string json = folder.write("run.json", small_document().dump(2));
  const std::string run = folder.path("run.h5");
  write_run_file(run, small_document());
  for (const std::string& kind : plot_registry().names()) {
    for (const char* extension : {".svg", ".png"}) {
      INFO(kind << extension);
      const std::string first = picture(folder, json, kind, extension);
      CHECK(first == picture(folder, json, kind, extension));
      CHECK(first == picture(folder, run, kind, extension));
    }
  }
}

TEST_CASE("pictures of a synthetic trace say so") {
  if (!can_draw()) return;
  const Folder folder;
  Json document = small_document();
  document["trace"]["synthetic"] = true;
  const std::string result = folder.write("run.json", document.dump());
  for (const std::string& kind : plot_registry().names()) {
    INFO(kind);
    CHECK_THAT(picture(folder, result, kind, ".svg"), ContainsSubstring("synthetic"));
  }
}

TEST_CASE("a method alone, zeros and names that are no names are drawn as well") {
  if (!can_draw()) return;
  const Folder folder;
  Json document = small_document();
  document["methods"] = Json::array({document["methods"][2]});  // the one that has samples
  Json& method = document["methods"][0];
  method["spec"] = "it's `a` \"q\" {x}^2_y\n!touch here %d \\";
  method["error"]["relative_l2"] = {{"mean", 0}, {"p95", 0}};
  for (Json& item : method["energy"]["items"]) item["pj"] = 0;
  for (const char* key : {"value", "low", "high"}) {
    method["energy"]["total_pj"][key] = 0;
    method["energy"]["datapath_pj"][key] = 0;
  }
  const std::string result = folder.write("run.json", document.dump());
  const std::size_t before = folder.files();
  for (const std::string& kind : plot_registry().names()) {
    INFO(kind);
    CHECK_THAT(picture(folder, result, kind, ".svg"), ContainsSubstring("it's `a`"));
  }
  CHECK(folder.files() == before + plot_registry().names().size());
}

TEST_CASE("error-samples: one curve for a method at all S, whatever of its parameters was typed") {
  const Folder folder;
  Json document = small_document();
  Json other = document["methods"][2];
  other["spec"] = "santa-sys:mode=released";
  other["params"]["samples"] = 16;
  other["error"]["relative_l2"]["mean"] = 0.3;
  document["methods"].push_back(other);
  const auto texts_of = [&](const Json& json) {
    std::string texts;
    const Document result(folder.write("run.json", json.dump()));
    const Figure figure = plot_registry().at("error-samples").draw(result);
    for (const PlacedText& placed : figure.texts()) texts += placed.text + "\n";
    return texts;
  };
  const std::string texts = texts_of(document);
  CHECK_THAT(texts, ContainsSubstring("mode=released\n0.300 at S = 16, 0.100 at 64\n"));
  CHECK_THAT(texts, ContainsSubstring("dense\nerror 3.0e-07 (off scale)\n"));
  CHECK(texts.find("santa-sys") == texts.rfind("santa-sys"));
  document["methods"].erase(3);
  document["methods"].erase(2);
  CHECK_THROWS_WITH(texts_of(document), ContainsSubstring("no method with a parameter samples"));
}

TEST_CASE("a script that gnuplot refuses is an error with gnuplot's words") {
  if (!can_draw()) return;
  CHECK_THROWS_WITH(run_gnuplot("plot nonsense\n"), ContainsSubstring("nonsense"));
  CHECK_THROWS_AS(run_gnuplot("plot nonsense\n" + std::string(1 << 20, '\n')), RuntimeError);
}
