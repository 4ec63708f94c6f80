#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/float16.h"
#include "kernels/device/buffer.cuh"
#include "kernels/device/enqueue.cuh"
#include "kernels/device/units.cuh"
#include "kernels/measure/oracle.cuh"

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

/// On the GPU; null: the step's own.
struct QueryPointers {
  const float* values = nullptr;
  const float* scales = nullptr;
};

/// Logits of one head into `scores` [rows]; a block per (query head, sequence).
template <typename T>
__global__ void logits(const __grid_constant__ DeviceStep step, const QueryPointers other,
                       double* scores, std::int64_t stride) {
  const int head = static_cast<int>(blockIdx.x);
  const int sequence = static_cast<int>(blockIdx.y);
  const std::int64_t index = std::int64_t{sequence} * step.q_heads + head;
  const T* query = static_cast<const T*>(step.q) + index * step.head_dim;
  const bool own = other.values == nullptr;
  const double scale = static_cast<double>(own ? step.scale : other.scales[index]);
  const int rows = step.contexts[static_cast<std::size_t>(sequence)];
  for (int t = static_cast<int>(threadIdx.x); t < rows; t += kThreads) {
    const T* row = device::row_pointer<T>(step.k, sequence, head / step.group(), t);
    double dot = 0;
    for (int i = 0; i < step.head_dim; ++i) {
      const double q =
          own ? wide(query[i]) : static_cast<double>(other.values[index * step.head_dim + i]);
      dot += q * wide(row[i]);
    }
    const double scaled = dot * scale;
    const double cap = static_cast<double>(step.logit_cap);
    scores[index * stride + t] = cap > 0 ? cap * tanh(scaled / cap) : scaled;
  }
}

/// Turns one head's logits into weights; a block per (query head, sequence).
__global__ void softmax(const __grid_constant__ DeviceStep step, double* weights,
                        std::int64_t stride) {
  const int head = static_cast<int>(blockIdx.x);
  const int sequence = static_cast<int>(blockIdx.y);
  const int rows = step.contexts[static_cast<std::size_t>(sequence)];
  double* own = weights + (std::int64_t{sequence} * step.q_heads + head) * stride;
  double highest = -INFINITY;
  for (int t = static_cast<int>(threadIdx.x); t < rows; t += kThreads) {
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

dim3 grid_of(const DeviceStep& step) {
  return {static_cast<unsigned>(step.q_heads), static_cast<unsigned>(step.batch)};
}

void enqueue_logits(const DeviceStep& step, const QueryPointers& other, std::int64_t stride,
                    double* scores, cudaStream_t stream) {
  const auto kernel = step.type == ElementType::kBfloat16 ? logits<__nv_bfloat16> : logits<__half>;
  enqueue(kernel, grid_of(step), kThreads, 0, stream, step, other, scores, stride);
}

void enqueue_rows(const DeviceStep& step, std::int64_t stride, const double* weights,
                  double* output, cudaStream_t stream) {
  const auto kernel =
      step.type == ElementType::kBfloat16 ? weighted_rows<__nv_bfloat16> : weighted_rows<__half>;
  enqueue(kernel, grid_of(step), kThreads, 0, stream, step, weights, stride, output);
}

std::size_t heads_of(const DeviceStep& step) {
  return static_cast<std::size_t>(step.batch * step.q_heads);
}

/// Elements of weights from one head to the next.
std::int64_t stride_of(const DeviceStep& step) {
  const auto longest = *std::max_element(step.contexts.begin(), step.contexts.begin() + step.batch);
  return std::max<std::int64_t>(step.dump_stride, longest);
}

double element(const std::byte* data, std::size_t index, ElementType type) {
  if (type == ElementType::kFloat32) {
    float value = 0;
    std::memcpy(&value, data + 4 * index, 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + 2 * index, 2);
  return type == ElementType::kBfloat16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

}  // namespace

std::vector<double> float64_scores(const DeviceStep& step, cudaStream_t stream,
                                   const OtherQueries& queries) {
  const std::int64_t stride = stride_of(step);
  DeviceBuffer<float> values(queries.values.size());
  DeviceBuffer<float> scales(queries.scales.size());
  QueryPointers other;
  if (!queries.values.empty()) {
    values.upload(queries.values);
    scales.upload(queries.scales);
    other = {values.data(), scales.data()};
  }
  DeviceBuffer<double> scores(heads_of(step) * static_cast<std::size_t>(stride));
  scores.fill_bytes(0xFF);
  check_cuda(cudaDeviceSynchronize(), "poisoning scores");  // was on another stream
  enqueue_logits(step, other, stride, scores.data(), stream);
  check_cuda(cudaStreamSynchronize(stream), "float64 oracle");
  std::vector<double> result(scores.size());
  scores.download(result);
  return result;
}

std::vector<double> float64_output(const DeviceStep& step, std::span<const double> weights,
                                   cudaStream_t stream) {
  const std::int64_t stride = stride_of(step);
  DeviceBuffer<double> on_device(heads_of(step) * static_cast<std::size_t>(stride));
  DeviceBuffer<double> output(heads_of(step) * static_cast<std::size_t>(step.head_dim));
  if (!weights.empty()) on_device.upload(weights);
  check_cuda(cudaDeviceSynchronize(), "uploading weights");  // was on another stream
  if (weights.empty()) {
    enqueue_logits(step, {}, stride, on_device.data(), stream);
    enqueue(softmax, grid_of(step), kThreads, 0, stream, step, on_device.data(), stride);
  }
  enqueue_rows(step, stride, on_device.data(), output.data(), stream);
  check_cuda(cudaStreamSynchronize(stream), "float64 oracle");
  std::vector<double> result(output.size());
  output.download(result);
  return result;
}

std::vector<float> host_queries(const DeviceStep& step) {
  const std::size_t count = heads_of(step) * static_cast<std::size_t>(step.head_dim);
  std::vector<std::byte> stored(2 * count);
  check_cuda(cudaMemcpy(stored.data(), step.q, stored.size(), cudaMemcpyDeviceToHost), "queries");
  std::vector<float> queries;
  for (std::size_t i = 0; i < count; ++i) {
    queries.push_back(static_cast<float>(element(stored.data(), i, step.type)));
  }
  return queries;
}

std::optional<double> relative_l2(std::span<const std::byte> output, ElementType type,
                                  std::span<const double> reference) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double value = element(output.data(), i, type);
    if (!std::isfinite(value)) return std::nullopt;
    difference += (value - reference[i]) * (value - reference[i]);
    norm += reference[i] * reference[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace kvsim
