// Block records on the GPU, at prefill or when decoding has filled a block: K is read once.

#include <algorithm>

#include "kernels/device/check.cuh"
#include "kernels/device/enqueue.cuh"
#include "kernels/device/units.cuh"
#include "kernels/eta/build_records.cuh"
#include "kernels/eta/rule.h"

namespace kvsim::eta {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / device::kWarp;
constexpr int kTileTokens = 128;  // of a CTA: whole blocks of every size
constexpr int kLanes = device::kWarp;

struct BuildArguments {
  DeviceStep step;
  RecordTable table;
  std::int64_t new_rows;
  int block;
  Spread spread;
};

__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float to_float(__half value) { return __half2float(value); }

/// ‖k‖² of a row by a warp, in the order of norm_squared: the sum is in lane 0.
template <typename T>
__device__ float warp_norm_squared(const T* row, int dim, int lane) {
  float sum = lane < dim ? to_float(row[lane]) : 0.0f;
  sum *= sum;
  for (int i = lane + kLanes; i < (dim + kLanes - 1) / kLanes * kLanes; i += kLanes) {
    const float value = i < dim ? to_float(row[i]) : 0.0f;
    sum = fmaf(value, value, sum);
  }
#pragma unroll
  for (int width = kLanes / 2; width > 0; width /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, width);
  }
  return sum;
}

/// Grid: (tiles of kTileTokens new tokens, KV heads, sequences).
template <typename T>
__global__ void __launch_bounds__(kThreads) build(const __grid_constant__ BuildArguments a) {
  __shared__ float squares[kTileTokens];
  T* tile = reinterpret_cast<T*>(device::dynamic_shared());  // [kTileTokens, head_dim]
  const int sequence = static_cast<int>(blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int dim = a.step.head_dim;
  const std::int64_t context = a.step.contexts[static_cast<std::size_t>(sequence)];
  const std::int64_t known = max(std::int64_t{0}, context - a.new_rows) / a.block;
  const std::int64_t first = known + std::int64_t{blockIdx.x} * (kTileTokens / a.block);
  const int blocks =
      static_cast<int>(min(std::int64_t{kTileTokens / a.block}, context / a.block - first));
  if (blocks <= 0) return;
  const int tokens = blocks * a.block;
  const int chunks = dim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < tokens * chunks; i += kThreads) {
    const int token = static_cast<int>(first) * a.block + i / chunks;
    const T* row = device::row_pointer<T>(a.step.k, sequence, kv_head, token);
    reinterpret_cast<uint4*>(tile)[i] = reinterpret_cast<const uint4*>(row)[i % chunks];
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int t = static_cast<int>(threadIdx.x) / kLanes; t < tokens; t += kWarps) {
    const float sum = warp_norm_squared(tile + t * dim, dim, lane);
    if (lane == 0) squares[t] = sum;
  }
  const std::int64_t team = std::int64_t{sequence} * a.step.kv_heads + kv_head;
  for (int i = static_cast<int>(threadIdx.x); i < blocks * dim; i += kThreads) {
    const int block = i / dim;
    const int column = i % dim;
    const T* keys = tile + block * a.block * dim + column;
    const auto key = [&](int t) { return to_float(keys[t * dim]); };
    const float mean = centroid(key, a.block);
    const float spread = a.spread == Spread::kFlat ? flat_spread(key, a.block, mean)
                                                   : envelope_spread(key, a.block, mean);
    __half* row = a.table.rows(team) + (first + block) * 2 * dim;
    row[column] = __float2half_rn(mean);
    row[dim + column] = __float2half_rn(spread);
  }
  __syncthreads();
  for (int block = static_cast<int>(threadIdx.x); block < blocks; block += kThreads) {
    float largest = 0;
    for (int t = 0; t < a.block; ++t) largest = fmaxf(largest, squares[block * a.block + t]);
    a.table.norms(team)[first + block] = stored_norm(largest);
  }
}

}  // namespace

void build_records(const DeviceStep& step, std::int64_t new_rows, int block, Spread spread,
                   const RecordTable& table, cudaStream_t stream) {
  const std::int64_t longest =
      *std::max_element(step.contexts.begin(), step.contexts.begin() + step.batch);
  const std::int64_t rows = std::min(new_rows, longest);
  // New rows may begin in the middle of a block.
  const std::int64_t tiles = (rows + block + kTileTokens - 1) / kTileTokens;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(step.kv_heads),
                  static_cast<unsigned>(step.batch));
  const BuildArguments arguments{step, table, new_rows, block, spread};
  const int bytes = kTileTokens * step.head_dim * 2;
  auto* kernel = step.type == ElementType::kBfloat16 ? build<__nv_bfloat16> : build<__half>;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "shared memory of a kernel");
  enqueue(kernel, grid, kThreads, static_cast<std::size_t>(bytes), stream, arguments);
}

}  // namespace kvsim::eta
