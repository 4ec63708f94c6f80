#pragma once

#include <cstdint>

#include "kernels/eta/blocks.h"
#include "kernels/eta/records.h"
#include "kernels/eta/rule.h"
#include "kernels/parameters.h"

namespace kvsim::eta {

/// Where thresholds come from.
enum class Source { kAuto, kLearned, kCalibrated, kUnion };

/// The method's parameters, for the CPU's rule, the kernel and the cost model alike.
struct Settings {
  /// Throws UsageError.
  explicit Settings(const Parameters& p);

  int block;
  BlockRule rule;
  float shift;
  float z;
  Spread spread;
  Gate gate;
  Source source;
  double density;
  bool published;  // the implementation

  bool is_token_exact() const { return block == 1; }
  std::int64_t full_blocks(std::int64_t rows) const { return rows / block; }
};

}  // namespace kvsim::eta
