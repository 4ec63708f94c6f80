#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "kernels/device/buffer.cuh"
#include "kernels/measure/graph_timer.cuh"

// Copies between host and GPU beside what else both do.

namespace kvsim {

/// Host memory that the GPU copies from and to by itself.
template <typename T>
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t count) : count_(count) {
    check_cuda(cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(T)),
               "pinned memory");
  }
  ~PinnedBuffer() { cudaFreeHost(data_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  T* data() const { return data_; }
  std::span<const T> first(std::size_t count) const { return {data_, count}; }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

class Event {
 public:
  Event() { check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream) const {
    check_cuda(cudaEventRecord(event_, stream.get()), "event");
  }
  void wait() const { check_cuda(cudaEventSynchronize(event_), "running kernels"); }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Copies pageable memory through two pinned pieces: one is filled while the other is under way.
class Uploader {
 public:
  void upload(const std::byte* from, std::byte* to, std::size_t bytes) {
    for (std::size_t begin = 0; begin < bytes; begin += kStagedBytes) {
      Piece& piece = pieces_[next_++ % pieces_.size()];
      const std::size_t count = std::min(kStagedBytes, bytes - begin);
      piece.copied.wait();  // at once if it was never recorded
      std::memcpy(piece.memory.data(), from + begin, count);
      check_cuda(cudaMemcpyAsync(to + begin, piece.memory.data(), count, cudaMemcpyHostToDevice,
                                 stream_.get()),
                 "upload");
      piece.copied.record(stream_);
    }
  }
  void finish() const { stream_.synchronize(); }

 private:
  static constexpr std::size_t kStagedBytes = std::size_t{16} << 20;  // of one copy to the GPU

  struct Piece {
    PinnedBuffer<std::byte> memory{kStagedBytes};
    Event copied;
  };
  Stream stream_;
  std::array<Piece, 2> pieces_;
  std::size_t next_ = 0;
};

}  // namespace kvsim
