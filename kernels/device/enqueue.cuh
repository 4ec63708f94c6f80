#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/device/check.cuh"

namespace kvsim {

/// kernel<<<grid, block, shared_bytes, stream>>>(arguments...), as plain C++, and checked.
template <typename... Parameters, typename... Arguments>
void enqueue(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
             cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), "kernel launch");
}

}  // namespace kvsim
