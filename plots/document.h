#pragma once

#include <string>
#include <vector>

#include "sim/json_node.h"

namespace kvsim {

/// The document of a replay, from a run file (dataset /document) or from a file of `--json` output.
class Document {
 public:
  /// Throws RuntimeError if the file cannot be read or holds no kvsim.replay/1 document with at
  /// least one method.
  explicit Document(std::string path);

  JsonNode root() const { return {json_, path_}; }
  std::vector<JsonNode> methods() const { return root().at("methods").items(); }

  /// "SmolLM2-135M-Instruct (synthetic trace), 2048 prompt tokens, 16 steps, 5 layers".
  std::string trace_title() const;
  /// "NVIDIA H200 SXM, 141 GB HBM3e"; empty without a GPU.
  std::string gpu_title() const;

 private:
  std::string path_;
  Json json_;
};

/// How a method is written in pictures: "santa-sys" and "samples=128, draws=4".
struct MethodLabel {
  std::string name;
  std::string detail;  // may be empty
};

MethodLabel method_label(const JsonNode& method);

}  // namespace kvsim
