// How fast a replay reads K and V, as a share of the machine's copy bandwidth in the same run:
//   bench_replay --benchmark_counters_tabular=true
// Bytes are dense-equivalent: 2 * rows * kv_heads * head_dim * 2 B per step and method, the float64
// error pass and the cost models included in the time. The trace is synthetic Gaussian noise, 8k
// tokens.

#include "sim/replay.h"

#include <benchmark/benchmark.h>
#include <omp.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

#include "core/float16.h"
#include "models/presets.h"
#include "traces/trace_file.h"

namespace kvsim {
namespace {

constexpr std::int64_t kPrompt = 8192;
constexpr std::int64_t kSteps = 16;

HostTensor random_tensor(std::array<std::int64_t, 3> shape, float sd, unsigned seed) {
  HostTensor tensor{ElementType::kBfloat16, shape, {}};
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, sd);
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(tensor.elements()));
  for (auto& b : bits) b = float_to_bf16(normal(engine));
  const auto* bytes = reinterpret_cast<const std::byte*>(bits.data());
  tensor.data.assign(bytes, bytes + bits.size() * sizeof(bits[0]));
  return tensor;
}

/// A trace file of one layer, removed when the program ends.
class BenchTrace {
 public:
  BenchTrace(int q_heads, int kv_heads, int head_dim)
      : path_(std::filesystem::temp_directory_path() /
              ("kvsim_bench_" + std::to_string(head_dim) + ".h5")) {
    TraceInfo info;
    info.model = "synthetic";
    info.source = "Gaussian noise of bench/replay.cpp";
    info.license = "none";
    info.prompt_tokens = kPrompt;
    info.decode_steps = kSteps;
    info.rope = "none";
    info.rope_scaling = "none";
    info.synthetic = true;
    TraceLayer layer;
    layer.info.q_heads = q_heads;
    layer.info.kv_heads = kv_heads;
    layer.info.head_dim = layer.info.v_head_dim = head_dim;
    layer.info.scale = 1 / std::sqrt(static_cast<double>(head_dim));
    layer.info.kv_type = ElementType::kBfloat16;
    layer.k = random_tensor({kv_heads, kPrompt + kSteps, head_dim}, 1, 1);
    layer.v = random_tensor({kv_heads, kPrompt + kSteps, head_dim}, 1, 2);
    layer.q = random_tensor({kSteps, q_heads, head_dim}, 2, 3);
    TraceWriter writer(path_.string(), info, {.force = true});
    writer.write_layer(layer);
    writer.commit();
  }
  ~BenchTrace() { std::filesystem::remove(path_); }
  BenchTrace(const BenchTrace&) = delete;
  BenchTrace& operator=(const BenchTrace&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// Bytes copied per second by `threads` memcpy loops over buffers that no cache holds.
double copy_bytes_per_second(int threads) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  std::vector<char> from(kBytes, 1);
  std::vector<char> to(kBytes, 2);
  const std::size_t share = kBytes / static_cast<std::size_t>(threads);
  double best = 0;
  for (int round = 0; round < 7; ++round) {
    const double start = omp_get_wtime();
#pragma omp parallel for num_threads(threads)
    for (int t = 0; t < threads; ++t) {
      const std::size_t begin = share * static_cast<std::size_t>(t);
      std::memcpy(to.data() + begin, from.data() + begin, share);
    }
    best = std::max(best, static_cast<double>(kBytes) / (omp_get_wtime() - start));
  }
  benchmark::DoNotOptimize(to.data());
  return best;
}

void replay_8k(benchmark::State& state, int q_heads, int kv_heads, int head_dim) {
  const BenchTrace trace(q_heads, kv_heads, head_dim);
  const auto threads = static_cast<int>(state.range(0));
  const double copy = copy_bytes_per_second(threads);
  ReplayOptions options;
  options.traces = {trace.path()};
  options.methods = {"dense", "santa-sys"};
  options.threads = threads;
  Target target;
  target.machine = Presets().gpu("h200_sxm");
  options.targets = {target};
  double bytes = 0;
  for (auto _ : state) {
    const Replay result = replay(options);
    benchmark::DoNotOptimize(result.runs.data());
    bytes += result.stored_bytes * static_cast<double>(options.methods.size());
  }
  state.counters["GB_per_s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsRate);
  state.counters["copy_GB_per_s"] = copy * 1e-9;
  state.counters["share_of_copy"] = benchmark::Counter(bytes / copy, benchmark::Counter::kIsRate);
}

BENCHMARK_CAPTURE(replay_8k, smollm2_9_3_64, 9, 3, 64)
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay_8k, llama_32_8_128, 32, 8, 128)
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvsim

BENCHMARK_MAIN();
