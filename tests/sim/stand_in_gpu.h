#pragma once

#include <cstdint>

#include "kernels/measure/gpu.h"

namespace kvsim::testing {

/// What a stand-in is to do wrong.
struct Fault {
  int head = -1;  // query head one of whose counts is wrong
  std::int64_t row = 0;
  int block = -1;  // of this head, whose bound is dumped as one that passes
};

/// Puts stand-ins in the place of the GPU while it lives: they answer as kernels would, from exact
/// scores and the methods' own rules.
class StandInGpu {
 public:
  explicit StandInGpu(Fault fault = {});
  ~StandInGpu() { measure_backend() = real_; }
  StandInGpu(const StandInGpu&) = delete;
  StandInGpu& operator=(const StandInGpu&) = delete;

 private:
  MeasureBackend real_;
};

}  // namespace kvsim::testing
