#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/method.h"
#include "models/llm/llm.h"
#include "sim/json.h"
#include "sim/measured_run.h"

namespace kvsim {

/// A question to the models alone: no trace is replayed.
struct PredictOptions {
  std::string program_version;
  std::string program_commit;
  std::vector<std::string> methods;  // specs
  Llm llm;
  std::string gpu;
  Target target;
  std::string kv_dtype;
  std::int64_t context = 0;
  std::int64_t batch = 1;
  std::optional<MeasuredRun> statistics;  // none: bounds
  std::vector<DefaultUsed> defaults;
};

/// The document "kvsim.predict/1" (docs/formats.md).
Json predict_document(const PredictOptions& options);

/// The stages of a work: launch, accesses and operations, for --explain.
Json stages_json(const Work& work);

}  // namespace kvsim
