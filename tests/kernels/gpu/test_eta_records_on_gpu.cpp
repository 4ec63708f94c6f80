// Block records that the GPU builds have the bits of the reference's; bounds by tensor cores are
// close to the reference's.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "kernels/eta/build_records.cuh"
#include "kernels/eta/records.h"
#include "kernels/measure/oracle.cuh"
#include "kernels/measure/screening.cuh"
#include "kernels/measure/selection.h"
#include "tests/catch.h"
#include "tests/kernels/gpu/gpu_case.cuh"

namespace kvsim {
namespace {

using eta::Records;
using eta::Spread;

bool has_gpu() {
  try {
    gpu_info();
    return true;
  } catch (const RuntimeError& error) {
    WARN("GPU-TEST-SKIPPED: " << error.what());
    return false;
  }
}

/// Random keys of a batch, on the GPU and here.
struct Keys {
  explicit Keys(const MeasureCase& shape)
      : copies(shape, 11, 1, stream.get()),
        step(copies.step(0)),
        stored(static_cast<std::size_t>(copies.bytes_per_tensor())) {
    check_cuda(cudaMemcpy(stored.data(), step.k.data, stored.size(), cudaMemcpyDeviceToHost),
               "keys");
  }

  RowsView rows(int sequence, int kv_head) const {
    const std::int64_t first = sequence * step.k.sequence_stride + kv_head * step.k.head_stride;
    return {stored.data() + 2 * first, step.type, step.contexts[static_cast<std::size_t>(sequence)],
            step.head_dim, step.head_dim};
  }

  Stream stream;
  KvCopies copies;
  DeviceStep step;
  std::vector<std::byte> stored;
};

/// A record table on the GPU, full of NaN at first.
struct Table {
  Table(const Keys& keys, int block) {
    const auto& contexts = keys.step.contexts;
    table.capacity = *std::max_element(contexts.begin(), contexts.end()) / block + 1;
    table.head_dim = keys.step.head_dim;
    const std::int64_t teams = std::int64_t{keys.step.batch} * keys.step.kv_heads;
    bytes = DeviceBuffer<std::byte>(static_cast<std::size_t>(teams * table.team_bytes()));
    bytes.fill_bytes(0xFF);
    check_cuda(cudaDeviceSynchronize(), "poisoning records");
    table.data = bytes.data();
  }

  DeviceBuffer<std::byte> bytes;
  eta::RecordTable table;
};

/// Records of a team whose bits are not the reference's; `stored` is the table in host memory.
int differences(const eta::RecordTable& stored, std::int64_t team, const Records& records) {
  const std::int64_t blocks = records.blocks();
  const int dim = stored.head_dim;
  const auto padded =
      static_cast<std::int64_t>(records.centroids().size()) / std::max<std::int64_t>(blocks, 1);
  int result = 0;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const __half* row = stored.rows(team) + b * 2 * dim;
    bool equal =
        std::memcmp(stored.norms(team) + b, &records.norms()[static_cast<std::size_t>(b)], 4) == 0;
    for (int c = 0; c < dim; ++c) {
      const float mean = __half2float(row[c]);
      const float sd = __half2float(row[dim + c]);
      const auto i = static_cast<std::size_t>(b * padded + c);
      equal = equal && mean == records.centroids()[i] && sd * sd == records.variances()[i];
    }
    result += equal ? 0 : 1;
  }
  return result;
}

int differences(const Keys& keys, int block, Spread spread, const Table& built) {
  std::vector<std::byte> bytes(built.bytes.size());
  built.bytes.download(bytes);
  eta::RecordTable stored = built.table;
  stored.data = bytes.data();
  int result = 0;
  for (int sequence = 0; sequence < keys.step.batch; ++sequence) {
    for (int head = 0; head < keys.step.kv_heads; ++head) {
      Records records(block, spread);
      records.extend(keys.rows(sequence, head));
      result += differences(stored, sequence * keys.step.kv_heads + head, records);
    }
  }
  return result;
}

TEST_CASE("eta: the GPU builds the reference's records, at once or block by block", "[gpu]") {
  if (!has_gpu()) return;
  for (const int dim : {40, 64, 80, 128, 256}) {
    for (const int block : {4, 8, 16, 32, 64, 128}) {
      MeasureCase shape;
      shape.contexts = {1000, 37, 4097};
      shape.q_heads = shape.kv_heads = 3;
      shape.head_dim = dim;
      shape.type = block % 3 == 1 ? ElementType::kFloat16 : ElementType::kBfloat16;
      const Keys keys(shape);
      const Spread spread = dim == 80 || block == 32 ? Spread::kFlat : Spread::kEnvelope;
      const Table at_once(keys, block);
      eta::build_records(keys.step, 1 << 20, block, spread, at_once.table, keys.stream.get());
      keys.stream.synchronize();
      INFO("head size " << dim << ", blocks of " << block);
      CHECK(differences(keys, block, spread, at_once) == 0);

      const Table grown(keys, block);
      constexpr int kLate = 30;  // rows that come later
      DeviceStep early = keys.step;
      for (int i = 0; i < early.batch; ++i) early.contexts[static_cast<std::size_t>(i)] -= kLate;
      eta::build_records(early, 1 << 20, block, spread, grown.table, keys.stream.get());
      for (int row = 1; row <= kLate; ++row) {
        for (int i = 0; i < early.batch; ++i) early.contexts[static_cast<std::size_t>(i)] += 1;
        eta::build_records(early, 1, block, spread, grown.table, keys.stream.get());
      }
      keys.stream.synchronize();
      CHECK(differences(keys, block, spread, grown) == 0);
    }
  }
}

constexpr int kBlock = 16;
constexpr float kZ = 2;

/// Bounds of a launch on the first `launched` sequences, and the largest error of any, relative to
/// the reference's plus 1. The records are those of all sequences.
double bound_error(const Keys& keys, int launched, const DeviceLimits& limits) {
  const NamedMethod method = make_method("eta:thresholds=union,block=16,z=2");
  const auto kernel = kernel_registry().at("eta").make(method.parameters);
  DeviceBuffer<std::byte> workspace(kernel->workspace_bytes(keys.step, limits));
  workspace.fill_bytes(0);
  check_cuda(cudaDeviceSynchronize(), "workspace");
  const PreparedScreening screening(ThresholdSource(*method.method), *kernel, limits, keys.step,
                                    workspace.data(), keys.stream.get());
  workspace.fill_bytes(0);  // the next launch is of another shape
  DeviceStep step = keys.step;
  screening.attach(step);
  step.batch = launched;
  const BoundDump dump(*kernel, step);
  kernel->launch(step, limits, workspace.data(), keys.stream.get());
  keys.stream.synchronize();
  const std::vector<float> bounds = dump.download();
  const std::vector<float> queries = host_queries(step);
  double worst = 0;
  for (int team = 0; team < launched * step.kv_heads; ++team) {
    const int head = team % step.kv_heads;
    const StepView view = view_of_group(step, {{}, queries}, team / step.kv_heads, head);
    Records records(kBlock, Spread::kEnvelope);
    records.extend(keys.rows(team / step.kv_heads, head));
    const std::vector<float> reference = records.bounds(view, kZ);
    const Screening own = screening_of(view, static_cast<std::size_t>(team * view.group),
                                       {bounds, {}, kBlock, step.bound_stride});
    REQUIRE(own.bounds.size() == reference.size());
    for (std::size_t i = 0; i < reference.size(); ++i) {
      // Squares are rounded to 11 bits on their way into the product. Not std::max: NaN is wrong.
      const double error = std::abs(own.bounds[i] - reference[i]) / (1 + std::abs(reference[i]));
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

TEST_CASE("eta: the kernel's bounds are those of the reference's records", "[gpu]") {
  if (!has_gpu()) return;
  const DeviceLimits limits = gpu_info().limits;
  for (const int dim : {64, 80, 128, 256}) {
    for (const int group : {1, 5, 8, 16}) {
      MeasureCase shape;
      shape.contexts = {2100, 37, 900};
      shape.q_heads = 2 * group;
      shape.kv_heads = 2;
      shape.head_dim = dim;
      shape.query_sd = group == 5 ? 20 : 1;
      const Keys keys(shape);
      for (const int launched : {3, 2}) {
        INFO("head size " << dim << ", group " << group << ", sequences " << launched);
        CHECK(bound_error(keys, launched, limits) < 1e-3);
      }
    }
  }
}

}  // namespace
}  // namespace kvsim
