#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>

#include "core/float16.h"
#include "kernels/device/buffer.h"
#include "kernels/device/units.cuh"
#include "kernels/measure/oracle.h"

// Deliberately plain: no tensor cores, no code shared with the kernels but where a row lies.

namespace kvsim {
namespace {

constexpr int kThreads = 256;

__device__ double wide(__nv_bfloat16 value) { return static_cast<double>(__bfloat162float(value)); }
__device__ double wide(__half value) { return static_cast<double>(__half2float(value)); }

__device__ double reduced(double value, bool highest) {
  __shared__ double shared[kThreads];
  __syncthreads();
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      const double other = shared[threadIdx.x + half];
      shared[threadIdx.x] =
          highest ? fmax(shared[threadIdx.x], other) : shared[threadIdx.x] + other;
    }
    __syncthreads();
  }
  return shared[0];
}

/// Softmax of one head into `weights` [rows]; a block per (query head, sequence).
template <typename T>
__global__ void softmax_weights(const __grid_constant__ DeviceStep step, double* weights,
                                std::int64_t stride) {
  const int head = static_cast<int>(blockIdx.x);
  const int sequence = static_cast<int>(blockIdx.y);
  const std::int64_t index = std::int64_t{sequence} * step.q_heads + head;
  const T* query = static_cast<const T*>(step.q) + index * step.head_dim;
  const int rows = step.contexts[static_cast<std::size_t>(sequence)];
  double* own = weights + index * stride;
  double highest = -INFINITY;
  for (int t = static_cast<int>(threadIdx.x); t < rows; t += kThreads) {
    const T* row = device::row_pointer<T>(step.k, sequence, head / step.group(), t);
    double dot = 0;
    for (int i = 0; i < step.head_dim; ++i) dot += wide(query[i]) * wide(row[i]);
    const double scaled = dot * static_cast<double>(step.scale);
    const double cap = static_cast<double>(step.logit_cap);
    own[t] = cap > 0 ? cap * tanh(scaled / cap) : scaled;
    highest = fmax(highest, own[t]);
  }
  if (step.sink_logits != nullptr) {
    highest = fmax(highest, static_cast<double>(step.sink_logits[head]));
  }
  highest = reduced(highest, true);
  double sum = 0;
  for (int t = static_cast<int>(threadIdx.x); t < rows; t += kThreads) {
    own[t] = exp(own[t] - highest);
    sum += own[t];
  }
  sum = reduced(sum, false);
  if (step.sink_logits != nullptr) {
    sum += exp(static_cast<double>(step.sink_logits[head]) - highest);
  }
  for (int t = static_cast<int>(threadIdx.x); t < rows; t += kThreads) own[t] /= sum;
}

/// Σ weights[t] V[t]; threads of a block share the columns and take rows in turn.
template <typename T>
__global__ void weighted_rows(const __grid_constant__ DeviceStep step, const double* weights,
                              std::int64_t stride, double* output) {
  const int head = static_cast<int>(blockIdx.x);
  const int sequence = static_cast<int>(blockIdx.y);
  const std::int64_t index = std::int64_t{sequence} * step.q_heads + head;
  const int rows = step.contexts[static_cast<std::size_t>(sequence)];
  const double* own = weights + index * stride;
  // One column at a time over all threads would read V badly; a thread per column reads it well.
  for (int column = static_cast<int>(threadIdx.x); column < step.head_dim; column += kThreads) {
    double sum = 0;
    for (int t = 0; t < rows; ++t) {
      const double weight = own[t];
      if (weight == 0) continue;  // rows that are not selected may be poison
      sum +=
          weight * wide(device::row_pointer<T>(step.v, sequence, head / step.group(), t)[column]);
    }
    output[index * step.head_dim + column] = sum;
  }
}

template <typename T>
void run(const DeviceStep& step, bool weights_given, std::int64_t stride, double* weights,
         double* output, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(step.q_heads), static_cast<unsigned>(step.batch));
  if (!weights_given) softmax_weights<T><<<grid, kThreads, 0, stream>>>(step, weights, stride);
  weighted_rows<T><<<grid, kThreads, 0, stream>>>(step, weights, stride, output);
  check_cuda(cudaGetLastError(), "float64 oracle");
}

}  // namespace

std::vector<double> float64_output(const DeviceStep& step, std::span<const double> weights,
                                   cudaStream_t stream) {
  const auto heads = static_cast<std::size_t>(step.batch * step.q_heads);
  std::int64_t stride = step.dump_stride;
  for (int b = 0; b < step.batch; ++b) {
    stride = std::max<std::int64_t>(stride, step.contexts[static_cast<std::size_t>(b)]);
  }
  DeviceBuffer<double> on_device(heads * static_cast<std::size_t>(stride));
  DeviceBuffer<double> output(heads * static_cast<std::size_t>(step.head_dim));
  if (!weights.empty()) on_device.upload(weights);
  check_cuda(cudaDeviceSynchronize(), "uploading weights");  // was on another stream
  const auto start = step.type == ElementType::kBfloat16 ? run<__nv_bfloat16> : run<__half>;
  start(step, !weights.empty(), stride, on_device.data(), output.data(), stream);
  check_cuda(cudaStreamSynchronize(stream), "float64 oracle");
  std::vector<double> result(output.size());
  output.download(result);
  return result;
}

std::optional<double> relative_l2(std::span<const std::byte> output, ElementType type,
                                  std::span<const double> reference) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, output.data() + 2 * i, 2);
    const double value = static_cast<double>(type == ElementType::kBfloat16 ? bf16_to_float(bits)
                                                                            : fp16_to_float(bits));
    if (!std::isfinite(value)) return std::nullopt;
    difference += (value - reference[i]) * (value - reference[i]);
    norm += reference[i] * reference[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace kvsim
