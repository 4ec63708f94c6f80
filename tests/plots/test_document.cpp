// What results must hold, and what is said of those that do not.

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "plots/plot.h"
#include "tests/catch.h"
#include "tests/plots/small_document.h"

using namespace kvsim;
using namespace kvsim::testing;

namespace {

/// The message that drawing a document gives; empty if it can be drawn.
std::string refusal(const Json& document, const std::string& kind) {
  const Folder folder;
  const std::string path = folder.write("run.json", document.dump());
  try {
    plot_registry().at(kind).draw(Document(path));
    return "";
  } catch (const RuntimeError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("a missing key is named with its place") {
  using Case = std::pair<const char*, const char*>;
  const std::vector<Case> cases{
      {"error-bytes", "/methods/1/error/relative_l2/p95"},
      {"error-bytes", "/methods/2/traffic/dram_share_of_dense"},
      {"latency", "/methods/0/time"},
      {"latency", "/methods/1/time/predicted_us/high"},
      {"latency", "/methods/1/time/terms/2/limit"},
      {"energy", "/methods/1/energy/datapath_pj"},
      {"energy", "/methods/2/energy/items/1/datapath"},
      {"energy", "/methods/0/accelerators/1/items"},
      {"speedup", "/methods/1/decode_step"},
      {"speedup", "/methods/1/decode_step/curve/0/speedup/low"},
      {"latency", "/trace/model"},
      {"latency", "/methods"},
  };
  for (const auto& [kind, place] : cases) {
    Json document = small_document();
    const Json::json_pointer pointer(place);
    document[pointer.parent_pointer()].erase(pointer.back());
    const std::string message = refusal(document, kind);
    INFO(place << ": " << message);
    CHECK_THAT(message, ContainsSubstring("run.json: "));
    CHECK_THAT(message, ContainsSubstring(pointer.back() + " is missing"));
  }
}

TEST_CASE("wrong types, nulls and values that cannot be drawn are named with their place") {
  Json document = small_document();
  document["methods"][1]["time"]["predicted_us"]["value"] = "fast";
  CHECK_THAT(
      refusal(document, "latency"),
      ContainsSubstring("methods[1].time.predicted_us.value is of type string, expected a number"));
  document = small_document();
  document["methods"][2]["time"]["terms"][0]["limit"] = "luck";
  CHECK_THAT(refusal(document, "latency"),
             ContainsSubstring("methods[2].time.terms[0].limit: 'luck'"));
  document = small_document();
  document["methods"][0]["decode_step"] = nullptr;
  document["methods"][0]["decode_step_reason"] = "no LLM given";
  CHECK_THAT(refusal(document, "speedup"), ContainsSubstring("decode_step is null: no LLM given"));
  document = small_document();
  document["methods"][0]["decode_step"]["curve"] = Json::array();
  CHECK_THAT(refusal(document, "speedup"), ContainsSubstring("curve: is empty"));
  document = small_document();
  document["methods"][1]["traffic"]["dram_share_of_dense"] = 0;
  CHECK_THAT(refusal(document, "error-bytes"), ContainsSubstring("not positive"));
  document = small_document();
  document["methods"][1]["accelerators"].erase(0);
  CHECK_THAT(refusal(document, "energy"),
             ContainsSubstring("methods[1].accelerators: has another length"));
  document = small_document();
  document["methods"] = Json::array();
  CHECK_THAT(refusal(document, "latency"), ContainsSubstring("methods is empty"));
}

TEST_CASE("only results of a replay are read") {
  const Folder folder;
  CHECK_THROWS_WITH(Document(folder.path("none.h5")), ContainsSubstring("none.h5: cannot be read"));
  CHECK_THROWS_WITH(Document(folder.write("text", "hello")),
                    ContainsSubstring("neither HDF5 nor JSON"));
  CHECK_THROWS_WITH(Document(folder.write("list", "[]")), ContainsSubstring("expected an object"));
  CHECK_THROWS_WITH(Document(folder.write("other", R"({"schema": "kvsim.list/1"})")),
                    ContainsSubstring("kvsim.list/1, expected kvsim.replay/1"));
  Json other = small_document();
  other["schema"] = "kvsim.sweep/1";
  write_run_file(folder.path("other.h5"), other);
  CHECK_THROWS_AS(Document(folder.path("other.h5")), RuntimeError);
  CHECK_THROWS_AS(Document(folder.path("")), RuntimeError);
}

TEST_CASE("a document without a GPU shows its accelerators only") {
  Json document = small_document();
  document["gpu"] = nullptr;
  document.erase("gpu_title");
  CHECK(refusal(document, "energy") == "");
  for (Json& method : document["methods"]) method["accelerators"] = Json::array();
  CHECK_THAT(refusal(document, "energy"), ContainsSubstring("no GPU and no accelerator"));
}

TEST_CASE("methods are written as typed") {
  const Json method{{"method", "santa-sys"}, {"spec", "santa-sys:samples=64,draws=4"}};
  const MethodLabel label = method_label(JsonNode(method, "f"));
  CHECK(label.name == "santa-sys");
  CHECK(label.detail == "samples=64, draws=4");
  const Json bare{{"method", "dense"}};
  CHECK(method_label(JsonNode(bare, "f")).name == "dense");
  CHECK(method_label(JsonNode(bare, "f")).detail == "");
}
