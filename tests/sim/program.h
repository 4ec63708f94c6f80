#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/sim/small_trace.h"

namespace kvsim::testing {

struct ProgramResult {
  int status = 0;
  std::string out;
  std::string err;

  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

/// Runs the program itself on `arguments`, a shell command line; streams pass through `folder`.
ProgramResult run_program(const TemporaryFolder& folder, const std::string& arguments);
/// Runs a verb that must succeed and parses the one document it prints.
nlohmann::json document_of(const TemporaryFolder& folder, const std::string& arguments);

std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& text);

}  // namespace kvsim::testing
