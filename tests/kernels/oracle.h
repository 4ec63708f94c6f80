#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/method.h"
#include "tests/kernels/counted.h"

namespace kvsim::testing {

/// What a naive float64 oracle did for one query head: which V rows it added how often, the output,
/// and, through OpTally, every operation on the way.
struct OracleHead {
  std::map<std::int64_t, double> weights;  // row -> weight or count
  std::vector<double> output;
};

/// Scores from drawn query features (SANTA §5): B draws, stratified or iid, of the head or once for
/// its group; 0 draws: exact scores.
struct ScoreRule {
  int draws = 0;
  bool stratified = true;
  bool group_mean = false;
};

// Each oracle computes its own scores from the stored rows, in the plainest loops, and shares no
// code with the methods but the random words.
OracleHead oracle_dense(const StepView& view, int g, const ScoreRule& rule = {});
OracleHead oracle_topk(const StepView& view, int g, std::int64_t keys);

enum class Sampler { kIid, kStrat, kSys };
OracleHead oracle_santa(const StepView& view, int g, Sampler sampler, std::uint32_t samples,
                        const ScoreRule& rule = {});

enum class PropRule { kPaper, kUnbiased };
OracleHead oracle_prop(const StepView& view, int g, PropRule rule, std::uint32_t samples, int tile,
                       const ScoreRule& scoring = {});

OracleHead oracle_flash(const StepView& view, int g, std::uint32_t samples, int tile);

enum class EtaGate { kMultiplicative, kAdditive, kNone };
struct EtaRule {
  int block = 64;
  int chunk = 128;
  int pinned = 2;
  double shift = 0;
  double z = 1.5;
  double density = 0.25;
  bool envelope = true;
  bool rescue = true;
  EtaGate gate = EtaGate::kMultiplicative;
};
OracleHead oracle_eta(const StepView& view, int g, const EtaRule& rule);

struct TeamRule {
  int parent = 16;  // contiguous tokens
  int representatives = 4;
  std::int64_t draws = 32;
  bool mean = false;  // routes by mean keys
};
OracleHead oracle_santapp(const StepView& view, int g, const TeamRule& rule);

struct QuestRule {
  std::int64_t page = 16;
  std::int64_t tokens = 512;
  bool last_always = true;  // the released kernels' rule, else the evaluation's
};
OracleHead oracle_quest(const StepView& view, int g, const QuestRule& rule);

/// Scores of the oracle, in float64, without touching the tally.
std::vector<double> oracle_scores(const StepView& view, int g, const ScoreRule& rule = {});

}  // namespace kvsim::testing
