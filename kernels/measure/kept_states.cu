#include <omp.h>

#include <algorithm>

#include "core/parallel.h"
#include "kernels/cache_of_layer.h"
#include "kernels/device/enqueue.cuh"
#include "kernels/device/units.cuh"
#include "kernels/measure/kept_states.cuh"

namespace kvsim {
namespace {

constexpr int kThreads = 256;
constexpr int kCtasPerHead = 64;

/// Rows of one sequence's KV heads, one head after the other: [kv_heads, rows, head_dim]. Grid:
/// (any, KV heads).
__global__ void collect_rows(KvTensor tensor, int sequence, std::int64_t rows, int head_dim,
                             std::uint16_t* out) {
  const auto head = static_cast<int>(blockIdx.y);
  const std::int64_t total = rows * head_dim;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += stride) {
    const auto* row =
        device::row_pointer<std::uint16_t>(tensor, sequence, head, static_cast<int>(i / head_dim));
    out[head * total + i] = row[i % head_dim];
  }
}

std::vector<std::uint16_t> download_rows(const DeviceStep& step, const KvTensor& tensor,
                                         int sequence, std::int64_t rows, cudaStream_t stream) {
  std::vector<std::uint16_t> host(static_cast<std::size_t>(step.kv_heads * rows * step.head_dim));
  DeviceBuffer<std::uint16_t> buffer(host.size());
  const dim3 grid(kCtasPerHead, static_cast<unsigned>(step.kv_heads));
  enqueue(collect_rows, grid, dim3(kThreads), 0, stream, tensor, sequence, rows, step.head_dim,
          buffer.data());
  check_cuda(cudaStreamSynchronize(stream), "collecting rows");
  buffer.download(host);
  return host;
}

/// A KV head's part of collected rows.
RowsView rows_of(const std::vector<std::uint16_t>& collected, const DeviceStep& step,
                 std::int64_t rows, int kv_head) {
  return {reinterpret_cast<const std::byte*>(collected.data() + kv_head * rows * step.head_dim),
          step.type, rows, step.head_dim, step.head_dim};
}

/// A cache that has grown to the step's context; nobody reads the rows.
CacheView grown(const DeviceStep& step, int sequence) {
  const RowsView rows{nullptr, step.type, step.contexts[static_cast<std::size_t>(sequence)],
                      step.head_dim, step.head_dim};
  return {.k = rows, .v = rows};
}

}  // namespace

KeptStates::KeptStates(const Method& method, const Kernel& kernel, const DeviceStep& step,
                       const TracedStep* traced, cudaStream_t stream) {
  states_.resize(static_cast<std::size_t>(step.batch * step.kv_heads));
  for (int sequence = 0; sequence < step.batch; ++sequence) {
    const std::int64_t rows = prompt_rows(step, sequence);
    prepared_rows_ = std::max(prepared_rows_, rows);
    std::vector<std::uint16_t> k;
    std::vector<std::uint16_t> v;
    if (traced == nullptr) {
      k = download_rows(step, step.k, sequence, rows, stream);
      v = download_rows(step, step.v, sequence, rows, stream);
    }
    parallel_for(step.kv_heads, omp_get_max_threads(), [&](std::int64_t index) {
      const auto head = static_cast<int>(index);
      const CacheView prompt = traced != nullptr ? cache_of_layer(*traced->layer, head, rows)
                                                 : CacheView{.k = rows_of(k, step, rows, head),
                                                             .v = rows_of(v, step, rows, head),
                                                             .scale = step.scale,
                                                             .logit_cap = step.logit_cap,
                                                             .kv_head = head};
      auto& state = states_[static_cast<std::size_t>(sequence * step.kv_heads + head)];
      state = method.prepare(prompt);
      method.append(*state, grown(step, sequence));
    });
  }
  DeviceStep kept = step;
  kept.prepared_rows = prepared_rows_;
  prepared_ = DeviceBuffer<std::byte>(kernel.prepared_bytes(kept));
  std::vector<const State*> states;
  for (const auto& state : states_) states.push_back(state.get());
  kernel.upload_states(kept, states, prepared_.data(), stream);
}

void KeptStates::attach(DeviceStep& step) const {
  step.prepared = prepared_.data();
  step.prepared_rows = prepared_rows_;
}

}  // namespace kvsim
