#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/measure/read_ceiling.cuh"

namespace kvsim {
namespace {

constexpr int kWordBytes = 16;

/// A chunk is kLoads * blockDim.x words; neighbouring threads read neighbouring words.
template <int kLoads>
__global__ void read_words(const uint4* first, std::int64_t first_words, const uint4* second,
                           std::int64_t words, std::uint32_t* sink) {
  const std::int64_t chunk = std::int64_t{kLoads} * blockDim.x;
  std::uint32_t mixed = 0;
  for (std::int64_t begin = blockIdx.x * chunk; begin < words; begin += gridDim.x * chunk) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::int64_t word = begin + i * std::int64_t{blockDim.x} + threadIdx.x;
      loaded[i] = {0, 0, 0, 0};
      if (word < words) {
        loaded[i] = __ldg(word < first_words ? first + word : second + (word - first_words));
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      mixed ^= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
    }
  }
  // Random data: once in 2^32 a thread writes, which keeps the loads from being removed.
  if (mixed == 0x9E3779B9u) *sink = mixed;
}

}  // namespace

std::string to_string(const ReadLaunch& launch) {
  return fmt::format("{} threads, {} loads, {}", launch.threads, launch.loads,
                     launch.ctas_per_sm == 0 ? "a CTA per chunk"
                                             : fmt::format("{} CTAs per SM", launch.ctas_per_sm));
}

std::vector<ReadLaunch> read_launches() {
  std::vector<ReadLaunch> launches;
  for (const int loads : {4, 8}) {
    for (const int threads : {256, 512, 1024}) {
      launches.push_back({threads, loads, 0});
      launches.push_back({threads, loads, 1024 / threads});
      if (loads == 4) launches.push_back({threads, loads, 2048 / threads});
    }
  }
  return launches;
}

void enqueue_read(const ReadSpan& span, const ReadLaunch& launch, int sms, std::uint32_t* sink,
                  cudaStream_t stream) {
  const std::int64_t first_words = span.first_bytes / kWordBytes;
  const std::int64_t words = first_words + span.second_bytes / kWordBytes;
  const std::int64_t chunk = std::int64_t{launch.loads} * launch.threads;
  const std::int64_t chunks = std::max<std::int64_t>((words + chunk - 1) / chunk, 1);
  const std::int64_t ctas =
      launch.ctas_per_sm == 0
          ? chunks
          : std::min<std::int64_t>(chunks, std::int64_t{sms} * launch.ctas_per_sm);
  const auto grid = static_cast<unsigned>(ctas);
  const auto threads = static_cast<unsigned>(launch.threads);
  const auto* first = static_cast<const uint4*>(span.first);
  const auto* second = static_cast<const uint4*>(span.second);
  KVSIM_CHECK(launch.loads == 4 || launch.loads == 8);
  if (launch.loads == 4) {
    read_words<4><<<grid, threads, 0, stream>>>(first, first_words, second, words, sink);
  } else {
    read_words<8><<<grid, threads, 0, stream>>>(first, first_words, second, words, sink);
  }
  check_cuda(cudaGetLastError(), "read kernel");
}

}  // namespace kvsim
