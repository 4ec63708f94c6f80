#include "plots/document.h"

#include <array>
#include <utility>

#include "core/error.h"
#include "core/text_file.h"
#include "sim/results.h"

namespace kvsim {
namespace {

constexpr const char* kSchema = "kvsim.replay/1";
constexpr std::array<char, 8> kHdf5Signature{'\x89', 'H', 'D', 'F', '\r', '\n', '\x1a', '\n'};

Json read_result(const std::string& path) {
  const std::string bytes = read_text_file(path);
  if (bytes.starts_with(std::string(kHdf5Signature.begin(), kHdf5Signature.end()))) {
    return read_document(path, kSchema);
  }
  Json json = Json::parse(bytes, nullptr, false);
  if (json.is_discarded()) fail<RuntimeError>("{}: neither HDF5 nor JSON", path);
  return json;
}

std::string count(std::size_t number, const std::string& noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

}  // namespace

Document::Document(std::string path) : path_(std::move(path)), json_(read_result(path_)) {
  const std::string schema = root().at("schema").text();
  if (schema != kSchema) {
    fail<RuntimeError>("{}: schema {}, expected {} (of kvsim replay)", path_, schema, kSchema);
  }
  if (methods().empty()) fail<RuntimeError>("{}: methods is empty, nothing to draw", path_);
}

std::string Document::trace_title() const {
  const JsonNode trace = root().at("trace");
  std::string title = trace.at("model").text();
  if (trace.at("synthetic").boolean()) {
    title = title == "synthetic" ? "synthetic trace" : title + " (synthetic trace)";
  }
  title += fmt::format(", {:.0f} prompt tokens", trace.at("prompt_tokens").number());
  if (trace.has("replayed_steps")) {
    title += ", " + count(trace.at("replayed_steps").items().size(), "step");
  }
  if (trace.has("replayed_layers")) {
    title += ", " + count(trace.at("replayed_layers").items().size(), "layer");
  }
  if (!root().has("traces")) return title;
  return title + ", " + count(root().at("traces").items().size(), "trace") + " pooled";
}

std::string Document::gpu_title() const {
  if (root().has("gpu_title")) return root().at("gpu_title").text();
  return root().has("gpu") ? root().at("gpu").text() : "";
}

MethodLabel method_label(const JsonNode& method) {
  const std::string spec = method.at(method.has("spec") ? "spec" : "method").text();
  const std::size_t colon = spec.find(':');
  if (colon == std::string::npos) return {spec, ""};
  MethodLabel label{spec.substr(0, colon), ""};
  for (const char letter : spec.substr(colon + 1)) {
    label.detail += letter;
    if (letter == ',') label.detail += ' ';
  }
  return label;
}

}  // namespace kvsim
