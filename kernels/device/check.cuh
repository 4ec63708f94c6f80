#pragma once

#include <cuda_runtime_api.h>

#include "core/error.h"

namespace kvsim {

/// Throws RuntimeError that names the call if CUDA refused it.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  fail<RuntimeError>("CUDA: {}: {}", what, cudaGetErrorString(status));
}

}  // namespace kvsim
