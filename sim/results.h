#pragma once

#include <string>

#include "core/output_file.h"
#include "sim/json.h"
#include "sim/replay.h"

namespace kvsim {

/// Writes a run file (docs/formats.md): every figure by sequence, seed, layer, step and head, and
/// the JSON document as the string dataset /document. Commits `output`.
void write_results(OutputFile output, const Replay& replay, const Json& document);

/// The JSON document of a run file. Throws RuntimeError if it is none, or not of the schema
/// expected.
Json read_document(const std::string& path, const std::string& schema);

}  // namespace kvsim
