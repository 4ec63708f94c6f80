#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device/buffer.cuh"

namespace kvsim {

/// How the read kernel is launched: `loads` 16-byte loads of a thread are under way at once;
/// `ctas_per_sm` CTAs take chunks in turn, or (0) every chunk has a CTA of its own.
struct ReadLaunch {
  int threads = 256;
  int loads = 8;
  int ctas_per_sm = 0;
};
std::string to_string(const ReadLaunch& launch);
/// Those worth trying on a GPU with as many threads per SM as any.
std::vector<ReadLaunch> read_launches();

/// Two pieces of memory to read, whole 16-byte words.
struct ReadSpan {
  const void* first = nullptr;
  std::int64_t first_bytes = 0;
  const void* second = nullptr;
  std::int64_t second_bytes = 0;
};

/// Enqueues a kernel that only reads. `sink` is one word that is never really written.
void enqueue_read(const ReadSpan& span, const ReadLaunch& launch, int sms, std::uint32_t* sink,
                  cudaStream_t stream);

}  // namespace kvsim
