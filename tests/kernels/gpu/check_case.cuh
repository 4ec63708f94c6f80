#pragma once

#include <string>

#include "tests/kernels/gpu/gpu_case.cuh"

namespace kvsim::testing {

/// Checks what a method's kernel gives on a case, and that `repeats` later launches give the same
/// bytes. False if the kernel refuses the case, which is said.
bool check_case(const std::string& spec, const GpuCase& gpu_case, const DeviceLimits& limits,
                int repeats);

}  // namespace kvsim::testing
