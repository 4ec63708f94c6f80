#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/attention_model.h"
#include "sim/json.h"
#include "sim/replay.h"

namespace kvsim {

inline constexpr std::int64_t kMaxContext = std::int64_t{1} << 20;

/// What a replay measured of a method, layer by layer, for the models of whole decode steps.
std::vector<MeasuredLayer> measured_layers(const Replay& replay, const MethodRun& run);
/// The dense baseline in the same form.
std::vector<MeasuredLayer> measured_dense_layers(const Replay& replay);

/// One method against dense on a whole LLM.
struct DecodeStudy {
  const Serving& serving;
  const NamedMethod& dense;  // the baseline
  const NamedMethod& method;
  std::vector<MeasuredLayer> dense_measured;
  std::vector<MeasuredLayer> measured;  // empty: bounds only
};

/// The decode step at a context. With `exact`, layers whose head shape is the LLM's own take the
/// times that the replay predicted from exact footprints.
DecodeStep study_step(const DecodeStudy& study, std::int64_t context, bool exact);

/// First context whose predicted attention beats dense, found on powers of two and then by
/// bisection; empty if there is none up to kMaxContext.
std::optional<std::int64_t> break_even_context(const DecodeStudy& study);

/// [{context, speedup{}, attention_speedup, fits}] at powers of two from 1024 to kMaxContext.
Json speedup_curve(const DecodeStudy& study);

/// All of it for a document: the step at `context`, break_even_context and the curve.
Json decode_step_json(const DecodeStudy& study, std::int64_t context, bool exact);

/// What LLM and cache need of the memory, and whether they fit.
MemoryNeed memory_need(const Serving& serving, std::int64_t context);
Json memory_json(const MemoryNeed& need);

/// Which captured layer stands for how many of the LLM's.
Json layer_map_json(const DecodeStudy& study);
/// What differs between the trace and the LLM, in words.
std::vector<std::string> study_notes(const DecodeStudy& study);

}  // namespace kvsim
