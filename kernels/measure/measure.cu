// One case on the GPU: methods, a baseline and read ceilings, timed in turn (docs/timing.md).

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>
#include <utility>

#include "kernels/measure/board.h"
#include "kernels/measure/graph_timer.cuh"
#include "kernels/measure/kv_copies.cuh"
#include "kernels/measure/read_ceiling.cuh"
#include "kernels/measure/statistics.h"
#include "kernels/measure/subject.cuh"

namespace kvsim {
namespace {

constexpr double kGraphUs = 2000;    // so that what lies around a graph is below 0.1 %
constexpr int kMostCalls = 512;      // a held stream takes only so many launches
constexpr double kQuiet = 0.005;     // relative standard deviation that ends the sampling
constexpr double kThrottled = 0.75;  // of the highest clock
constexpr auto kCoolDown = std::chrono::milliseconds(50);
constexpr int kTuningRounds = 3;

int attribute(cudaDeviceAttr which) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, 0), "device attribute");
  return value;
}

std::string pci_bus_id() {
  std::string id(32, '\0');
  check_cuda(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), 0), "PCI bus id");
  id.resize(id.find('\0'));
  return id;
}

std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

GpuInfo device_info() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    fail<RuntimeError>("no CUDA device: {}",
                       status != cudaSuccess ? cudaGetErrorString(status) : "none is visible");
  }
  GpuInfo info;
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device properties");
  info.name = properties.name;
  info.limits.sms = properties.multiProcessorCount;
  info.limits.threads_per_sm = properties.maxThreadsPerMultiProcessor;
  info.limits.shared_bytes_per_sm =
      static_cast<std::int64_t>(properties.sharedMemPerMultiprocessor);
  info.limits.l2_bytes = properties.l2CacheSize;
  info.max_sm_mhz = attribute(cudaDevAttrClockRate) * 1e-3;
  int version = 0;
  check_cuda(cudaRuntimeGetVersion(&version), "runtime version");
  info.runtime = cuda_version(version);
  info.driver = Board(pci_bus_id()).driver_version();
  if (info.driver.empty()) {
    check_cuda(cudaDriverGetVersion(&version), "driver version");
    info.driver = "CUDA " + cuda_version(version);
  }
  return info;
}

double key_bytes(const MeasureCase& shape, std::int64_t rows) {
  return static_cast<double>(rows) * shape.kv_heads * shape.row_bytes();
}

/// Bytes of a copy that a call reads at least: K, or, of a kernel with a copy of its own, what
/// routes in it.
double least_read(const std::string& spec, const MeasureCase& shape) {
  const double k = key_bytes(shape, shape.total_context());
  const NamedMethod method = make_method(spec);
  const std::unique_ptr<Kernel> kernel = kernel_registry().at(method.name).make(method.parameters);
  if (!kernel->wants_states()) return k;
  const std::vector<std::int64_t> contexts(shape.contexts.begin(), shape.contexts.end());
  return std::min(k, method.method->bounds(shape_of(shape, contexts)).high.state_bytes_read);
}

int copies_of(const MeasureRequest& request, std::int64_t l2_bytes) {
  const MeasureCase& shape = request.shape;
  const double k = key_bytes(shape, shape.total_context());
  double read = k;
  for (const std::string& spec : request.methods) read = std::min(read, least_read(spec, shape));
  const auto rows = static_cast<std::int64_t>(shape.contexts.size()) * shape.max_context();
  const int tensors = read < k ? 5 : 2;  // K and V, and the kernel's own copy of both, and more
  return cold_copies(read, tensors * key_bytes(shape, rows), l2_bytes);
}

/// Something that is timed, and where its samples go.
struct Candidate {
  CallGraph graph;
  std::size_t samples;  // index into Session::samples_
};

/// One case: builds the graphs, takes the rounds, gives the result.
class Session {
 public:
  explicit Session(const MeasureRequest& request)
      : request_(request),
        info_(device_info()),
        board_(pci_bus_id()),
        copies_(request.shape, request.seed,
                request.check_only ? 1 : copies_of(request, info_.limits.l2_bytes), stream_.get()),
        timer_(info_.limits.sms, stream_.get()),
        sink_(1) {}

  MeasureResult run() {
    for (const std::string& spec : request_.methods) {
      subjects_.emplace_back(spec, copies_, request_.shape, info_.limits, stream_);
      result_.methods.emplace_back().spec = spec;
      subjects_.back().check(copies_, request_.shape, stream_, result_.methods.back());
      add_ceilings(result_.methods.back());
    }
    if (!request_.check_only) time();
    return std::move(result_);
  }

 private:
  using Enqueue = std::function<void(int)>;

  void time() {
    build_graphs();
    take_rounds();
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      subjects_[i].check_again(copies_, stream_, result_.methods[i]);
    }
    hand_out();
  }

  /// The ceiling of the floor bytes, and that of K alone where V is not read whole.
  void add_ceilings(MethodTimes& times) {
    const double k = times.k_bytes + times.statistics.state_bytes_read;
    const double v = times.statistics.v_rows * request_.shape.row_bytes();
    const bool whole = times.statistics.v_rows == times.statistics.k_rows;
    times.ceilings.push_back(ceiling(whole ? "k+v" : "k+v rows", k, v));
    if (!whole) times.ceilings.push_back(ceiling("k", k, 0));
  }

  std::size_t ceiling(const std::string& reads, double k_bytes, double v_bytes) {
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      if (spans_[i] == std::pair{k_bytes, v_bytes}) return i;
    }
    spans_.emplace_back(k_bytes, v_bytes);
    result_.ceilings.push_back({reads, k_bytes + v_bytes, "", {}});
    return spans_.size() - 1;
  }

  int copy_of(int call) const { return call % copies_.copies(); }

  Enqueue reads(std::size_t index, const ReadLaunch& launch) const {
    return [this, index, launch](int call) {
      const DeviceStep& step = copies_.step(copy_of(call));
      const auto bytes = [&](double wanted) {
        return std::min(static_cast<std::int64_t>(wanted), copies_.bytes_per_tensor());
      };
      enqueue_read(
          {step.k.data, bytes(spans_[index].first), step.v.data, bytes(spans_[index].second)},
          launch, info_.limits.sms, sink_.data(), stream_.get());
    };
  }

  CallGraph graph_of(int calls, const Enqueue& enqueue) const {
    return CallGraph(calls, stream_.get(), enqueue);
  }

  /// A graph that goes over all copies as often as makes it long enough.
  CallGraph long_graph(const Enqueue& enqueue) {
    const CallGraph once = graph_of(copies_.copies(), enqueue);
    timer_.time(once);  // warm-up
    const double us = timer_.time(once).us * once.calls();
    const double rounds = std::ceil(kGraphUs / std::max(us, 1.0));
    const int most = std::max(kMostCalls / copies_.copies(), 1);
    return graph_of(copies_.copies() * static_cast<int>(std::min<double>(rounds, most)), enqueue);
  }

  void add(const Enqueue& enqueue) {
    candidates_.push_back({long_graph(enqueue), samples_.size()});
    samples_.emplace_back();
  }

  /// Samples in this order: spacer; back to back and spaced of each method; each ceiling.
  void build_graphs() {
    add([this](int) { timer_.space(); });
    for (const Subject& subject : subjects_) {
      const Enqueue call = [&](int i) { subject.enqueue(copies_, copy_of(i), stream_.get()); };
      add(call);
      add([&, call](int i) {
        call(i);
        timer_.space();
      });
    }
    for (std::size_t i = 0; i < spans_.size(); ++i) add_best_reads(i);
  }

  void add_best_reads(std::size_t index) {
    std::optional<ReadLaunch> best;
    double best_us = 0;
    for (const ReadLaunch& launch : read_launches()) {
      const CallGraph graph = long_graph(reads(index, launch));
      std::vector<double> us;
      for (int i = 0; i < kTuningRounds; ++i) us.push_back(timer_.time(graph).us);
      if (!best || median(us) < best_us) {
        best = launch;
        best_us = median(us);
      }
    }
    result_.ceilings[index].launch = to_string(*best);
    add(reads(index, *best));
  }

  /// One sample of every candidate; false if the GPU was throttled in one of them.
  bool take_round(bool backwards, std::vector<double>& us, std::vector<double>& mhz) {
    bool good = true;
    us.assign(candidates_.size(), 0);
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const std::size_t c = backwards ? candidates_.size() - 1 - i : i;
      const GraphTimer::Sample sample = timer_.time(candidates_[c].graph);
      us[candidates_[c].samples] = sample.us;
      if (sample.sm_mhz > 0) {
        mhz.push_back(sample.sm_mhz);
        good = good && sample.sm_mhz >= kThrottled * info_.max_sm_mhz;
      }
    }
    return good;
  }

  /// The methods' samples have settled.
  bool quiet() const {
    const auto first = samples_.begin() + 1;
    return std::all_of(first, first + 2 * static_cast<std::ptrdiff_t>(subjects_.size()),
                       [](const auto& samples) { return relative_stdev(samples) < kQuiet; });
  }

  /// Rounds go forwards and backwards in turn (ABBA), so that drift meets all alike.
  void take_rounds() {
    using Clock = std::chrono::steady_clock;
    std::vector<double> mhz;
    std::vector<double> us;
    const auto begin = Clock::now();
    const auto least = static_cast<std::size_t>(request_.least_samples);
    for (int round = 0;; ++round) {
      const std::size_t taken = samples_.front().size();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      if (taken >= least && (seconds > request_.seconds || quiet())) break;
      const bool good = take_round(round % 2 == 1, us, mhz);
      // A GPU that is always slow is measured as it is: the clock stands in the result.
      if (!good && result_.throttled_samples < request_.least_samples) {
        ++result_.throttled_samples;
        std::this_thread::sleep_for(kCoolDown);
        continue;
      }
      for (std::size_t i = 0; i < us.size(); ++i) samples_[i].push_back(us[i]);
    }
    result_.board = board_.readings();
    result_.sm_mhz = mhz.empty() ? 0 : median(mhz);
  }

  void hand_out() {
    result_.spacer_us = median(samples_.front());
    std::size_t next = 1;
    for (MethodTimes& times : result_.methods) {
      times.back_to_back_us = std::move(samples_[next++]);
      times.spaced_us = std::move(samples_[next++]);
      for (double& us : times.spaced_us) us -= result_.spacer_us;
    }
    for (ReadCeiling& ceiling : result_.ceilings) ceiling.samples_us = std::move(samples_[next++]);
    result_.stream_held = timer_.holds();
    result_.copies = copies_.copies();
    result_.rotated_bytes = static_cast<double>(copies_.bytes_per_tensor()) * copies_.copies();
  }

  MeasureRequest request_;
  GpuInfo info_;
  Board board_;
  Stream stream_;
  KvCopies copies_;
  GraphTimer timer_;
  DeviceBuffer<std::uint32_t> sink_;
  std::vector<Subject> subjects_;
  std::vector<std::pair<double, double>> spans_;  // K and V bytes of each ceiling
  std::vector<Candidate> candidates_;
  std::vector<std::vector<double>> samples_;
  MeasureResult result_;
};

[[maybe_unused]] const bool kRegistered = [] {
  measure_backend().info = device_info;
  measure_backend().measure = [](const MeasureRequest& request) { return Session(request).run(); };
  return true;
}();

}  // namespace
}  // namespace kvsim
