#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/device/buffer.cuh"

namespace kvsim {

/// Calls captured as one CUDA graph, so that no launch from the host lies between them.
class CallGraph {
 public:
  /// `enqueue(i)` puts call i of `calls` on the stream. Throws RuntimeError if a call cannot be
  /// captured.
  CallGraph(int calls, cudaStream_t stream, const std::function<void(int)>& enqueue);
  ~CallGraph();
  CallGraph(CallGraph&& other) noexcept;
  CallGraph& operator=(CallGraph&&) = delete;

  int calls() const { return calls_; }
  void launch(cudaStream_t stream) const;

 private:
  int calls_ = 0;
  cudaGraphExec_t graph_ = nullptr;
};

/// Times graphs by events, the stream being held until all is enqueued, and counts the SM clock.
class GraphTimer {
 public:
  GraphTimer(int sms, cudaStream_t stream);
  ~GraphTimer();
  GraphTimer(const GraphTimer&) = delete;
  GraphTimer& operator=(const GraphTimer&) = delete;

  struct Sample {
    double us = 0;      // per call
    double sm_mhz = 0;  // while it ran; 0 if the clocks cannot tell
  };
  /// Throws RuntimeError if CUDA fails.
  Sample time(const CallGraph& graph);
  /// False once the GPU refused to take a whole graph while its stream was held; from then on it is
  /// not held.
  bool holds() const { return holds_; }
  /// Enqueues one call of the kernel that goes between spaced calls.
  void space() const;

 private:
  struct Stamp {
    std::uint64_t nanoseconds;
    std::uint64_t cycles;
  };
  void stamp(int which) const;
  void enqueue(const CallGraph& graph);
  double sm_mhz() const;

  bool holds_ = true;
  int sms_;
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  int* released_ = nullptr;             // in host memory, which the holding kernel watches
  DeviceBuffer<std::uint64_t> stamps_;  // [2, sms, {ns, cycles}]
  DeviceBuffer<std::uint32_t> touched_;
};

}  // namespace kvsim
