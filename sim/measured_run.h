#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/attention_model.h"
#include "sim/json.h"
#include "sim/json_node.h"

namespace kvsim {

/// Statistics of earlier replays, read from the document in a run file (kvsim replay -o).
class MeasuredRun {
 public:
  /// Throws RuntimeError if the file is no run file. What its document lacks, or what cannot be
  /// (a negative count), is one too, when it is asked for; it names file and place.
  explicit MeasuredRun(const std::string& path);

  const std::string& path() const { return path_; }
  JsonNode root() const { return {document_, path_ + ": /document"}; }
  /// The layers of the method with this name and these parameters, without times: those belong to
  /// the run's own GPU. Throws UsageError if the run has no such method.
  std::vector<MeasuredLayer> layers(const NamedMethod& method) const;
  /// The same, or nothing for a method that always reads the same rows (dense), which needs none.
  std::vector<MeasuredLayer> layers_if_needed(const NamedMethod& method) const;

 private:
  std::optional<JsonNode> find(const NamedMethod& method) const;

  std::string path_;
  Json document_;
};

}  // namespace kvsim
