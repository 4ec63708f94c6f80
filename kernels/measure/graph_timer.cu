#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/measure/graph_timer.cuh"
#include "kernels/measure/statistics.h"

namespace kvsim {
namespace {

constexpr std::uint64_t kHoldLimitNs = 500'000'000;  // rather a bad sample than a hung stream

__device__ std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void hold_stream(const volatile int* released) {
  const std::uint64_t begin = nanoseconds();
  while (*released == 0 && nanoseconds() - begin < kHoldLimitNs) {
  }
}

/// Every SM that runs a block notes both of its clocks; a later block of the same SM replaces it.
__global__ void note_clocks(ulonglong2* stamps, std::uint32_t sms) {
  std::uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (sm < sms) stamps[sm] = {nanoseconds(), static_cast<std::uint64_t>(clock64())};
}

__global__ void touch_little(std::uint32_t* word) {
  if (threadIdx.x == 0) *word += 1;
}

}  // namespace

CallGraph::CallGraph(int calls, cudaStream_t stream, const std::function<void(int)>& enqueue)
    : calls_(calls) {
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "graph capture");
  cudaGraph_t captured = nullptr;
  try {
    for (int i = 0; i < calls; ++i) enqueue(i);
  } catch (...) {
    cudaStreamEndCapture(stream, &captured);
    cudaGraphDestroy(captured);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &captured), "graph capture");
  const cudaError_t status = cudaGraphInstantiate(&graph_, captured, 0);
  cudaGraphDestroy(captured);
  check_cuda(status, "graph instantiation");
  check_cuda(cudaGraphUpload(graph_, stream), "graph upload");
}

CallGraph::~CallGraph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

CallGraph::CallGraph(CallGraph&& other) noexcept
    : calls_(other.calls_), graph_(std::exchange(other.graph_, nullptr)) {}

void CallGraph::launch(cudaStream_t stream) const {
  check_cuda(cudaGraphLaunch(graph_, stream), "graph launch");
}

GraphTimer::GraphTimer(int sms, cudaStream_t stream)
    : sms_(sms), stream_(stream), stamps_(static_cast<std::size_t>(sms) * 4), touched_(1) {
  check_cuda(cudaEventCreate(&begin_), "event");
  check_cuda(cudaEventCreate(&end_), "event");
  check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&released_), sizeof(int), cudaHostAllocMapped),
             "pinned memory");
  touched_.fill_bytes(0);
}

GraphTimer::~GraphTimer() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
  cudaFreeHost(released_);
}

void GraphTimer::stamp(int which) const {
  auto* stamps = reinterpret_cast<ulonglong2*>(stamps_.data()) + which * sms_;
  // Twice as many blocks as SMs, so that (nearly) every SM gets one.
  note_clocks<<<static_cast<unsigned>(2 * sms_), 1, 0, stream_>>>(stamps,
                                                                  static_cast<std::uint32_t>(sms_));
}

/// Everything of one sample; the stream is held until it is all there.
void GraphTimer::enqueue(const CallGraph& graph) {
  volatile int* released = released_;
  *released = holds_ ? 0 : 1;
  hold_stream<<<1, 1, 0, stream_>>>(released_);
  stamp(0);
  check_cuda(cudaGetLastError(), "holding the stream");
  check_cuda(cudaEventRecord(begin_, stream_), "event");
  graph.launch(stream_);
  check_cuda(cudaEventRecord(end_, stream_), "event");
  stamp(1);
  *released = 1;
}

GraphTimer::Sample GraphTimer::time(const CallGraph& graph) {
  using Clock = std::chrono::steady_clock;
  check_cuda(cudaMemsetAsync(stamps_.data(), 0, stamps_.size() * sizeof(std::uint64_t), stream_),
             "clearing the clocks");
  const auto begin = Clock::now();
  enqueue(graph);
  const bool timed_out = holds_ && Clock::now() - begin >= std::chrono::nanoseconds(kHoldLimitNs);
  check_cuda(cudaStreamSynchronize(stream_), "running a graph");
  if (timed_out) {  // the queue was full before the graph was in it
    holds_ = false;
    return time(graph);
  }
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "event");
  return {static_cast<double>(milliseconds) * 1e3 / graph.calls(), sm_mhz()};
}

void GraphTimer::space() const { touch_little<<<1, 32, 0, stream_>>>(touched_.data()); }

/// The median SM's cycles per microsecond between the two stamps.
double GraphTimer::sm_mhz() const {
  std::vector<std::uint64_t> words(stamps_.size());
  stamps_.download(words);
  std::vector<double> clocks;
  for (std::size_t sm = 0; sm < static_cast<std::size_t>(sms_); ++sm) {
    const auto at = [&](std::size_t which) {
      const std::size_t i = 2 * (which * static_cast<std::size_t>(sms_) + sm);
      return Stamp{words[i], words[i + 1]};
    };
    const Stamp first = at(0);
    const Stamp second = at(1);
    if (first.nanoseconds == 0 || second.nanoseconds <= first.nanoseconds) continue;
    clocks.push_back(static_cast<double>(second.cycles - first.cycles) * 1e3 /
                     static_cast<double>(second.nanoseconds - first.nanoseconds));
  }
  return clocks.empty() ? 0 : median(clocks);
}

}  // namespace kvsim
