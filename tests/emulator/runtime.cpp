#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "tests/emulator/device.h"

using kvsim::emulator::Device;

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorCooperativeLaunchTooLarge:
      return "too many blocks in cooperative launch";
  }
  return "unknown error";
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  *pointer = Device::instance().memory.allocate(bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  return Device::instance().memory.free(pointer) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemset(void* pointer, int value, std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (!Device::instance().memory.contains(pointer, bytes)) return cudaErrorInvalidValue;
  std::memset(pointer, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  const void* device = kind == cudaMemcpyHostToDevice ? to : from;
  if (!Device::instance().memory.contains(device, bytes)) return cudaErrorInvalidValue;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t width, std::size_t height, cudaMemcpyKind kind) {
  for (std::size_t row = 0; row < height; ++row) {
    const cudaError_t status =
        cudaMemcpy(static_cast<std::byte*>(to) + row * to_pitch,
                   static_cast<const std::byte*>(from) + row * from_pitch, width, kind);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = *total_bytes = std::size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int value) {
  if (value < 0 || value > Device::kMostSharedBytes) return cudaErrorInvalidValue;
  Device::instance().shared_bytes_of[function] = value;
  return cudaSuccess;
}

namespace kvsim::emulator {

cudaError_t launch(const cudaLaunchConfig_t& config, const void* function,
                   std::function<void()> kernel) {
  LaunchShape shape{config.gridDim, config.blockDim, config.dynamicSmemBytes, false};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id != cudaLaunchAttributeCooperative) return cudaErrorInvalidValue;
    shape.cooperative = config.attrs[i].val.cooperative != 0;
  }
  switch (launch(shape, function, std::move(kernel))) {
    case LaunchError::kNone:
      return cudaSuccess;
    case LaunchError::kConfiguration:
      return cudaErrorInvalidConfiguration;
    case LaunchError::kTooLarge:
      break;
  }
  return cudaErrorCooperativeLaunchTooLarge;
}

}  // namespace kvsim::emulator
