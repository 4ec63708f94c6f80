#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/device/enqueue.cuh"
#include "kernels/device/units.cuh"
#include "kernels/measure/kv_copies.cuh"

namespace kvsim {
namespace {

constexpr int kThreads = 256;
constexpr int kWords = 4;             // of one Philox block, one per value
constexpr double kColdness = 5;       // copies x bytes over the L2
constexpr int kMostCopies = 512;      // tiny caches stay in the L2 whatever is done
constexpr double kMemoryShare = 0.8;  // of what is free, at most

/// Which tensor a stream of random words fills: the streams' `step`.
enum class Filled : std::uint32_t { kK = 1, kV, kQ, kPages };

RandomStream stream_of(std::uint64_t seed, Filled what, int copy) {
  return {.seed = seed,
          .purpose = Purpose::kSynthetic,
          .layer = static_cast<std::uint32_t>(copy),
          .step = static_cast<std::uint32_t>(what)};
}

template <typename T>
__device__ T rounded(float value);
template <>
__device__ __nv_bfloat16 rounded<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __half rounded<__half>(float value) {
  return __float2half_rn(value);
}

/// Four values of a normal distribution (Box-Muller) from one block of a stream.
template <typename T>
__device__ void store_normals(const RandomStream& random, std::uint32_t index, float sd, T* out) {
  const RandomWords words = random.block(index);
  for (int i = 0; i < kWords; i += 2) {
    const float uniform = (static_cast<float>(words.word[i] >> 8) + 0.5f) * 0x1p-24f;
    const float radius = sd * sqrtf(-2 * logf(uniform));
    const float turn = static_cast<float>(words.word[i + 1] >> 8) * 0x1p-23f;
    out[i] = rounded<T>(radius * cospif(turn));
    out[i + 1] = rounded<T>(radius * sinpif(turn));
  }
}

/// Grid: (any, KV head, sequence).
template <typename T>
__global__ void fill_rows(const __grid_constant__ DeviceStep step, KvTensor tensor,
                          RandomStream random) {
  const int sequence = static_cast<int>(blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  random.sequence = blockIdx.z;
  random.head = blockIdx.y;
  const int chunks = step.head_dim / kWords;
  const std::int64_t total =
      std::int64_t{step.contexts[static_cast<std::size_t>(sequence)]} * chunks;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total;
       i += stride) {
    const T* row = device::row_pointer<T>(tensor, sequence, head, static_cast<int>(i / chunks));
    store_normals(random, static_cast<std::uint32_t>(i), 1.0f,
                  const_cast<T*>(row) + i % chunks * kWords);
  }
}

template <typename T>
__global__ void fill_queries(T* queries, std::int64_t chunks, float sd, RandomStream random) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
  store_normals(random, static_cast<std::uint32_t>(i), sd, queries + i * kWords);
}

template <typename T>
void fill(const DeviceStep& step, std::uint64_t seed, int copy, float query_sd,
          cudaStream_t stream) {
  const std::span<const std::int32_t> contexts = contexts_of(step);
  const std::int64_t longest = *std::max_element(contexts.begin(), contexts.end());
  const std::int64_t tiles = (longest * step.head_dim / kWords + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(std::min<std::int64_t>(tiles, 256)),
                  static_cast<unsigned>(step.kv_heads), static_cast<unsigned>(step.batch));
  enqueue(fill_rows<T>, grid, kThreads, 0, stream, step, step.k, stream_of(seed, Filled::kK, copy));
  enqueue(fill_rows<T>, grid, kThreads, 0, stream, step, step.v, stream_of(seed, Filled::kV, copy));
  const std::int64_t chunks = std::int64_t{step.batch} * step.q_heads * step.head_dim / kWords;
  const auto blocks = static_cast<unsigned>((chunks + kThreads - 1) / kThreads);
  enqueue(fill_queries<T>, blocks, kThreads, 0, stream, static_cast<T*>(const_cast<void*>(step.q)),
          chunks, query_sd, stream_of(seed, Filled::kQ, copy));
}

/// Rows of one sequence, [kv_heads, rows, head_dim] as 16-bit words, to where the layout wants
/// them. Grid: (any, KV head).
__global__ void place_rows(const __grid_constant__ DeviceStep step, KvTensor tensor,
                           const std::uint16_t* rows) {
  const int head = static_cast<int>(blockIdx.y);
  const std::int64_t total = std::int64_t{step.contexts[0]} * step.head_dim;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total;
       i += stride) {
    const auto* row =
        device::row_pointer<std::uint16_t>(tensor, 0, head, static_cast<int>(i / step.head_dim));
    const_cast<std::uint16_t*>(row)[i % step.head_dim] = rows[head * total + i];
  }
}

/// The rows that a traced step sees of K or V, one KV head after the other.
DeviceBuffer<std::uint16_t> upload_rows(const HostTensor& tensor, const Range& rows) {
  const std::int64_t dim = tensor.shape[2];
  const auto row_bytes = static_cast<std::size_t>(2 * dim);
  const auto head_bytes = static_cast<std::size_t>(rows.end - rows.begin) * row_bytes;
  const auto heads = static_cast<std::size_t>(tensor.shape[0]);
  DeviceBuffer<std::uint16_t> buffer(heads * head_bytes / 2);
  const std::byte* first = tensor.data.data() + static_cast<std::size_t>(rows.begin) * row_bytes;
  check_cuda(cudaMemcpy2D(buffer.data(), head_bytes, first,
                          static_cast<std::size_t>(tensor.shape[1]) * row_bytes, head_bytes, heads,
                          cudaMemcpyHostToDevice),
             "uploading a trace");
  return buffer;
}

std::int64_t rounded_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

int cold_copies(double k_bytes, double stored_bytes, std::int64_t l2_bytes) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "free memory");
  const double room = std::floor(static_cast<double>(free_bytes) * kMemoryShare / stored_bytes);
  if (room < 1) {
    fail<RuntimeError>("K and V of {:.3g} GB do not fit the GPU's free {:.3g} GB",
                       stored_bytes * 1e-9, static_cast<double>(free_bytes) * 1e-9);
  }
  const double wanted = std::ceil(kColdness * static_cast<double>(l2_bytes) / k_bytes);
  return static_cast<int>(std::clamp(std::min(wanted, room), 1.0, double{kMostCopies}));
}

KvCopies::KvCopies(const MeasureCase& shape, std::uint64_t seed, int copies, cudaStream_t stream)
    : shape_(shape), copies_(copies) {
  const auto batch = static_cast<std::int64_t>(shape.contexts.size());
  std::int64_t tokens = shape.max_context();
  if (shape.layout == MeasureLayout::kPaged) {
    tokens = rounded_up(tokens, shape.page_tokens);
    pages_per_sequence_ = tokens / shape.page_tokens;
  }
  copy_elements_ = batch * shape.kv_heads * tokens * shape.head_dim;
  query_elements_ = batch * shape.q_heads * shape.head_dim;
  const auto elements = static_cast<std::size_t>(copy_elements_ * copies);
  const auto query_elements = static_cast<std::size_t>(query_elements_ * copies);
  k_ = DeviceBuffer<std::uint16_t>(elements);
  v_ = DeviceBuffer<std::uint16_t>(elements);
  q_ = DeviceBuffer<std::uint16_t>(query_elements);
  output_ = DeviceBuffer<std::uint16_t>(query_elements);
  for (auto* buffer : {&k_, &v_, &output_}) buffer->fill_bytes(0xFF);
  if (pages_per_sequence_ > 0) shuffle_pages(seed);
  if (shape.traced && !shape.traced->layer->sink_logits.empty()) {
    sinks_ = DeviceBuffer<float>(shape.traced->layer->sink_logits.size());
    sinks_.upload(shape.traced->layer->sink_logits);
  }
  for (int i = 0; i < copies; ++i) steps_.push_back(make_step(seed, i));
  check_cuda(cudaDeviceSynchronize(), "poisoning K and V");  // was on another stream
  if (shape.traced) {
    fill_from_trace(stream);
  } else {
    fill_random(seed, stream);
  }
  check_cuda(cudaStreamSynchronize(stream), "filling K and V");
}

void KvCopies::fill_random(std::uint64_t seed, cudaStream_t stream) {
  const auto sd = static_cast<float>(shape_.query_sd);
  for (int i = 0; i < copies_; ++i) {
    if (shape_.type == ElementType::kBfloat16) {
      fill<__nv_bfloat16>(step(i), seed, i, sd, stream);
    } else {
      fill<__half>(step(i), seed, i, sd, stream);
    }
  }
}

/// The rows are freed on return, so it waits for the copies.
void KvCopies::fill_from_trace(cudaStream_t stream) {
  const TracedStep& traced = *shape_.traced;
  const DeviceBuffer<std::uint16_t> k = upload_rows(traced.layer->k, traced.rows);
  const DeviceBuffer<std::uint16_t> v = upload_rows(traced.layer->v, traced.rows);
  const auto query_bytes = static_cast<std::size_t>(2 * query_elements_);
  const std::byte* queries =
      traced.layer->q.data.data() + static_cast<std::size_t>(traced.step) * query_bytes;
  const dim3 grid(256, static_cast<unsigned>(shape_.kv_heads));
  for (int i = 0; i < copies_; ++i) {
    enqueue(place_rows, grid, kThreads, 0, stream, step(i), step(i).k, k.data());
    enqueue(place_rows, grid, kThreads, 0, stream, step(i), step(i).v, v.data());
    check_cuda(cudaMemcpyAsync(q_.data() + query_elements_ * i, queries, query_bytes,
                               cudaMemcpyHostToDevice, stream),
               "uploading queries");
  }
  check_cuda(cudaStreamSynchronize(stream), "placing a trace's K and V");
}

/// Every copy's pages lie in its own part of the memory, in an order of their own.
void KvCopies::shuffle_pages(std::uint64_t seed) {
  const auto batch = static_cast<std::int64_t>(shape_.contexts.size());
  const auto pages = static_cast<std::size_t>(batch * pages_per_sequence_);
  std::vector<std::int32_t> table(pages * static_cast<std::size_t>(copies_));
  for (int copy = 0; copy < copies_; ++copy) {
    const auto own = std::span(table).subspan(pages * static_cast<std::size_t>(copy), pages);
    std::iota(own.begin(), own.end(), 0);
    const RandomStream random = stream_of(seed, Filled::kPages, copy);
    for (std::size_t left = pages; left > 1; --left) {
      const std::uint64_t word = random.word(static_cast<std::uint32_t>(left));
      std::swap(own[left - 1], own[static_cast<std::size_t>((word * left) >> 32)]);
    }
  }
  pages_ = DeviceBuffer<std::int32_t>(table.size());
  pages_.upload(table);
}

KvTensor KvCopies::tensor(const std::uint16_t* data) const {
  const int dim = shape_.head_dim;
  const int heads = shape_.kv_heads;
  const std::int64_t tokens = shape_.max_context();
  switch (shape_.layout) {
    case MeasureLayout::kHnd:
      return {data, heads * tokens * dim, tokens * dim, dim};
    case MeasureLayout::kNhd:
      return {data, heads * tokens * dim, dim, heads * dim};
    case MeasureLayout::kPaged:
      break;
  }
  const std::int64_t page = shape_.page_tokens;
  KvTensor paged{data, heads * page * dim, page * dim, dim};
  paged.pages_per_sequence = static_cast<std::int32_t>(pages_per_sequence_);
  paged.page_shift = std::countr_zero(static_cast<std::uint32_t>(shape_.page_tokens));
  return paged;
}

DeviceStep KvCopies::make_step(std::uint64_t seed, int index) const {
  DeviceStep step;
  step.type = step.output_type = shape_.type;
  step.batch = static_cast<int>(shape_.contexts.size());
  step.q_heads = shape_.q_heads;
  step.kv_heads = shape_.kv_heads;
  step.head_dim = shape_.head_dim;
  std::copy(shape_.contexts.begin(), shape_.contexts.end(), step.contexts.begin());
  step.q = q_.data() + query_elements_ * index;
  step.k = tensor(k_.data() + copy_elements_ * index);
  step.v = tensor(v_.data() + copy_elements_ * index);
  if (pages_per_sequence_ > 0) {
    step.k.pages = step.v.pages = pages_.data() + pages_per_sequence_ * step.batch * index;
  }
  step.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape_.head_dim)));
  step.prompt_tokens = shape_.prompt_tokens();
  step.random = {.seed = seed, .step = static_cast<std::uint32_t>(index)};
  if (shape_.traced) {  // every copy draws what a replay of the step draws
    const LayerInfo& info = shape_.traced->layer->info;
    step.scale = static_cast<float>(info.scale);
    step.logit_cap = static_cast<float>(info.logit_cap);
    step.sink_logits = sinks_.size() > 0 ? sinks_.data() : nullptr;
    step.random.layer = static_cast<std::uint32_t>(info.layer);
    step.random.step = static_cast<std::uint32_t>(shape_.traced->step);
  }
  step.output = output_.data() + query_elements_ * index;
  return step;
}

void KvCopies::add_feature_copies(cudaStream_t stream) {
  if (!features_.empty()) return;
  for (DeviceStep& step : steps_) {
    features_.emplace_back(step.batch, step.kv_heads, step.head_dim, shape_.max_context());
    features_.back().fill(step, stream);
  }
  check_cuda(cudaStreamSynchronize(stream), "copying K feature by feature");
}

void KvCopies::poison_output(int index) {
  check_cuda(cudaMemset(step(index).output, 0xFF, static_cast<std::size_t>(output_bytes())),
             "poisoning an output");
  check_cuda(cudaDeviceSynchronize(), "poisoning an output");  // was on another stream
}

std::vector<std::byte> KvCopies::output(int index) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(output_bytes()));
  check_cuda(cudaMemcpy(bytes.data(), step(index).output, bytes.size(), cudaMemcpyDeviceToHost),
             "reading an output");
  return bytes;
}

}  // namespace kvsim
