#include <algorithm>

#include "kernels/device/enqueue.cuh"
#include "kernels/device/units.cuh"
#include "kernels/measure/feature_copy.cuh"

namespace kvsim {
namespace {

constexpr int kTile = 32;  // tokens and features that a block turns round at once

/// Grid: (tiles of tokens, tiles of features, teams); block: (kTile, 8).
__global__ void copy_by_feature(const __grid_constant__ DeviceStep step, std::uint16_t* copy) {
  __shared__ std::uint16_t tile[kTile][kTile + 1];
  const int sequence = static_cast<int>(blockIdx.z) / step.kv_heads;
  const int head = static_cast<int>(blockIdx.z) % step.kv_heads;
  const int rows = step.contexts[static_cast<std::size_t>(sequence)];
  const int first_token = static_cast<int>(blockIdx.x) * kTile;
  const int first_feature = static_cast<int>(blockIdx.y) * kTile;
  const int x = static_cast<int>(threadIdx.x);
  for (int y = static_cast<int>(threadIdx.y); y < kTile; y += static_cast<int>(blockDim.y)) {
    if (first_token + y < rows && first_feature + x < step.head_dim) {
      tile[y][x] = device::row_pointer<std::uint16_t>(step.k, sequence, head,
                                                      first_token + y)[first_feature + x];
    }
  }
  __syncthreads();
  static_assert(kFeatureBlock % kTile == 0);
  auto* target = copy + sequence * step.k_by_feature.sequence_stride +
                 head * step.k_by_feature.head_stride +
                 std::int64_t{first_token / kFeatureBlock} * kFeatureBlock * step.head_dim +
                 first_token % kFeatureBlock;
  for (int y = static_cast<int>(threadIdx.y); y < kTile; y += static_cast<int>(blockDim.y)) {
    if (first_token + x < rows && first_feature + y < step.head_dim) {
      target[(first_feature + y) * kFeatureBlock + x] = tile[x][y];
    }
  }
}

unsigned tiles(std::int64_t count) { return static_cast<unsigned>((count + kTile - 1) / kTile); }

}  // namespace

FeatureCopy::FeatureCopy(int batch, int kv_heads, int head_dim, std::int64_t most_tokens) {
  const std::int64_t blocks = (most_tokens + kFeatureBlock - 1) / kFeatureBlock;
  keys_.head_stride = blocks * kFeatureBlock * head_dim;
  keys_.sequence_stride = keys_.head_stride * kv_heads;
  data_ = DeviceBuffer<std::uint16_t>(static_cast<std::size_t>(keys_.sequence_stride * batch));
  data_.fill_bytes(0xFF);
  check_cuda(cudaDeviceSynchronize(), "poisoning K");  // was on another stream
  keys_.data = data_.data();
}

void FeatureCopy::fill(DeviceStep& step, cudaStream_t stream) const {
  step.k_by_feature = keys_;
  std::int32_t longest = 0;
  for (const std::int32_t rows : contexts_of(step)) longest = std::max(longest, rows);
  const dim3 grid(tiles(longest), tiles(step.head_dim),
                  static_cast<unsigned>(step.batch * step.kv_heads));
  enqueue(copy_by_feature, grid, dim3(kTile, 8), 0, stream, step, data_.data());
}

}  // namespace kvsim
