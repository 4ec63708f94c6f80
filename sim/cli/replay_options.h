#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/presets.h"
#include "sim/cli/command_line.h"
#include "sim/document.h"
#include "sim/kv_dtype.h"
#include "sim/replay.h"

namespace kvsim {

/// Options that several verbs share, so that they read alike everywhere.
void add_method_option(CommandLine& line);
void add_replay_options(CommandLine& line);       // --layers --steps --repeats
void add_memory_options(CommandLine& line);       // --layout --l2 --kv-dtype
void add_accelerator_options(CommandLine& line);  // --accelerator --node --memory
void add_llm_options(CommandLine& line);          // --llm --config

/// Method specs, at least one, all valid. Throws UsageError.
std::vector<std::string> method_specs(const CommandLine& line);
/// The traces and what to replay of them; `targets` stays empty.
ReplayOptions replay_options(const CommandLine& line, std::vector<std::string> traces);
/// --kv-dtype, or the type of the trace; the latter is added to `defaults`.
KvDtype kv_dtype_option(const CommandLine& line, const std::string& trace,
                        std::vector<DefaultUsed>& defaults);
/// The accelerators asked for, as targets. Throws UsageError if --node or --memory stand alone.
std::vector<Target> accelerator_targets(const CommandLine& line, const Presets& presets);
/// Names the node and memory that each accelerator took by itself.
void add_accelerator_defaults(const CommandLine& line, std::span<const Target> targets,
                              std::vector<DefaultUsed>& defaults);
/// --llm or --config, or nothing.
std::optional<Llm> llm_option(const CommandLine& line, const Presets& presets);

/// Logs how much was replayed and how fast, on standard error.
void log_throughput(const Replay& replay, double seconds);

}  // namespace kvsim
