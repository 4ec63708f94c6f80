#pragma once

#include <string>

#include "sim/json.h"

namespace kvsim {

/// The documents as tables for people: every number comes from the JSON, methods are the lines,
/// notes and the defaults that decided follow below.
std::string replay_report(const Json& document);
std::string predict_report(const Json& document);
/// Stages, accesses and terms behind a prediction, layer by layer.
std::string explain_report(const Json& document);
std::string energy_report(const Json& document);

/// The notes and defaults of a document, one line each.
std::string notes_text(const Json& document);

}  // namespace kvsim
