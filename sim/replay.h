#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/measure/gpu.h"
#include "kernels/method.h"
#include "sim/bias.h"
#include "sim/cost.h"
#include "sim/head_figures.h"
#include "sim/index_list.h"
#include "traces/trace.h"

namespace kvsim {

/// What to replay, and on which machines to cost it.
struct ReplayOptions {
  std::vector<std::string> traces;   // independent sequences, pooled
  std::vector<std::string> methods;  // as typed, "santa-sys:samples=128"
  IndexList layers;
  IndexList steps;
  std::uint64_t seed = 0;
  int repeats = 1;  // seeds seed … seed + repeats - 1, pooled
  int threads = 1;
  std::vector<Target> targets;
  bool on_gpu = false;   // by the methods' kernels, instead of on the CPU
  bool measure = false;  // their times too; only on the GPU
};

/// One step on one target.
struct TargetFigures {
  double requested_bytes = 0;
  double sector_bytes = 0;
  double dram_read_bytes = 0;
  double dram_write_bytes = 0;
  Estimate us{};
  Estimate total_pj{};
  Estimate datapath_pj{};
};

struct UnionFigures {
  double k_rows = 0;
  double k_features = 0;  // of these rows
  double v_rows = 0;
};

/// One sequence, seed, layer and step under one method.
struct StepRecord {
  int sequence = 0;
  std::uint64_t seed = 0;
  int layer = 0;
  std::int64_t step = 0;
  double context = 0;  // rows the step sees
  int head_dim = 0;
  bool latent = false;               // V is a part of the K row
  std::vector<HeadFigures> heads;    // [q_heads]
  std::vector<UnionFigures> unions;  // [kv_heads]
  Statistics statistics;             // sums over heads
  std::vector<TargetFigures> targets;
};

/// Times of a method's kernel, summed over sequences and steps.
struct MeasuredSum {
  Estimate us = exactly(0, Source::kSpec);
  double steps = 0;
};

/// Costs of one layer per target, summed over sequences, seeds and steps.
using LayerCosts = std::vector<CostSum>;
/// Of all layers on one target.
CostSum total_of(const std::map<int, LayerCosts>& layers, std::size_t target);
BiasSums total_of(const std::map<int, BiasSums>& layers);

/// One method over everything replayed.
struct MethodRun {
  std::vector<StepRecord> records;   // by sequence, layer, seed, step
  std::map<int, LayerCosts> layers;  // by layer
  std::map<int, BiasSums> bias;      // by layer; without heads for one seed
  std::map<int, MeasuredSum> times;  // by layer, if measured
  double prepare_bytes = 0;          // moved to make states of the prompt, mean per layer
  double state_bytes = 0;            // mean per layer
  CostSum prepare;                   // of making them, by layer; no steps: there is no model
  std::vector<std::string> notes;    // of the states, each text once
};

struct Replay {
  std::vector<TraceInfo> traces;
  std::vector<std::vector<std::int64_t>> layers;  // replayed, per trace
  std::vector<std::vector<std::int64_t>> steps;
  std::map<int, LayerInfo> layer_infos;
  std::uint64_t seed = 0;
  int repeats = 1;
  std::optional<GpuInfo> gpu;  // that the kernels ran on; empty: replayed on the CPU
  bool measured = false;
  std::vector<Target> targets;
  std::vector<std::string> specs;  // of the methods, as typed
  std::vector<NamedMethod> methods;
  std::vector<MethodRun> runs;  // [methods]
  NamedMethod dense;            // the baseline, costed even if nobody asked for it
  std::map<int, LayerCosts> dense_layers;
  double stored_bytes = 0;  // K + V that dense attention reads from the trace over all steps, once
};

/// Reads one layer at a time (on the GPU the next one arrives meanwhile), replays every method on
/// it and costs what the steps read. Throws UsageError for names and indices, RuntimeError for
/// files, values and the GPU.
Replay replay(ReplayOptions options);

}  // namespace kvsim
