#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/llm/llm.h"
#include "sim/json.h"
#include "sim/replay.h"
#include "sim/summary.h"

namespace kvsim {

/// What a document says beside the replay itself.
struct DocumentOptions {
  std::string program_version;
  std::string program_commit;
  std::string gpu;  // preset name; empty: targets hold accelerators only
  std::string kv_dtype;
  std::optional<Llm> llm;
  std::vector<DefaultUsed> defaults;
};

/// The document "kvsim.replay/1" (docs/formats.md). targets[0] must be the GPU.
Json replay_document(const Replay& replay, const DocumentOptions& options);

/// Parts that other documents share. The head: schema, version, trace(s), seed, layout, cache …
Json document_head(const std::string& schema, const Replay& replay, const DocumentOptions& options);
Json error_json(const ErrorSummary& error, const BiasSums& bias);
Json selection_json(const SelectionSummary& selection);
/// Figures of one method layer by layer, with the statistics that `predict --stats` reads.
Json by_layer_json(const Replay& replay, const MethodRun& run);

}  // namespace kvsim
