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

/// Record tables on the GPU, and what became of them.
struct Tables {
  Tables(const Keys& keys, int block)
      : capacity(*std::max_element(keys.step.contexts.begin(), keys.step.contexts.end()) / block +
                 1),
        rows(static_cast<std::size_t>(keys.step.batch * keys.step.kv_heads * capacity * 2 *
                                      keys.step.head_dim)),
        norms(static_cast<std::size_t>(keys.step.batch * keys.step.kv_heads * capacity)) {
    rows.fill_bytes(0xFF);
    norms.fill_bytes(0xFF);
    check_cuda(cudaDeviceSynchronize(), "poisoning records");
  }

  std::int64_t capacity;
  DeviceBuffer<__half> rows;
  DeviceBuffer<float> norms;
};

/// Records whose bits are not the reference's.
int differences(const Keys& keys, int block, Spread spread, const Tables& tables) {
  std::vector<__half> rows(tables.rows.size());
  std::vector<float> norms(tables.norms.size());
  tables.rows.download(rows);
  tables.norms.download(norms);
  const int dim = keys.step.head_dim;
  int result = 0;
  for (int sequence = 0; sequence < keys.step.batch; ++sequence) {
    for (int head = 0; head < keys.step.kv_heads; ++head) {
      Records records(block, spread);
      records.extend(keys.rows(sequence, head));
      const auto padded = static_cast<std::int64_t>(
          records.blocks() > 0
              ? records.centroids().size() / static_cast<std::size_t>(records.blocks())
              : 0);
      for (std::int64_t b = 0; b < records.blocks(); ++b) {
        const std::int64_t at = (sequence * keys.step.kv_heads + head) * tables.capacity + b;
        bool equal = std::memcmp(&norms[static_cast<std::size_t>(at)],
                                 &records.norms()[static_cast<std::size_t>(b)], 4) == 0;
        for (int c = 0; c < dim; ++c) {
          const float mean = __half2float(rows[static_cast<std::size_t>(at * 2 * dim + c)]);
          const float sd = __half2float(rows[static_cast<std::size_t>((at * 2 + 1) * dim + c)]);
          const auto i = static_cast<std::size_t>(b * padded + c);
          equal = equal && mean == records.centroids()[i] && sd * sd == records.variances()[i];
        }
        result += equal ? 0 : 1;
      }
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
      const Tables tables(keys, block);
      const eta::RecordTables on_gpu{tables.rows.data(), tables.norms.data(), tables.capacity};
      eta::build_records(keys.step, 1 << 20, block, spread, on_gpu, keys.stream.get());
      keys.stream.synchronize();
      INFO("head size " << dim << ", blocks of " << block);
      CHECK(differences(keys, block, spread, tables) == 0);

      const Tables grown(keys, block);
      const eta::RecordTables growing{grown.rows.data(), grown.norms.data(), grown.capacity};
      constexpr int kLate = 30;  // rows that come later
      DeviceStep early = keys.step;
      for (int i = 0; i < early.batch; ++i) early.contexts[static_cast<std::size_t>(i)] -= kLate;
      eta::build_records(early, 1 << 20, block, spread, growing, keys.stream.get());
      for (int row = 1; row <= kLate; ++row) {
        for (int i = 0; i < early.batch; ++i) early.contexts[static_cast<std::size_t>(i)] += 1;
        eta::build_records(early, 1, block, spread, growing, keys.stream.get());
      }
      keys.stream.synchronize();
      CHECK(differences(keys, block, spread, grown) == 0);
    }
  }
}

TEST_CASE("eta: the kernel's bounds are those of the reference's records", "[gpu]") {
  if (!has_gpu()) return;
  const DeviceLimits limits = gpu_info().limits;
  for (const int dim : {64, 80, 128, 256}) {
    for (const int group : {1, 5, 8, 16}) {
      MeasureCase shape;
      shape.contexts = {2100};
      shape.q_heads = 2 * group;
      shape.kv_heads = 2;
      shape.head_dim = dim;
      shape.query_sd = group == 5 ? 20 : 1;
      const Keys keys(shape);
      const NamedMethod method = make_method("eta:thresholds=union,block=16,z=2");
      const auto kernel = kernel_registry().at("eta").make(method.parameters);
      DeviceBuffer<std::byte> workspace(kernel->workspace_bytes(keys.step, limits));
      workspace.fill_bytes(0);
      check_cuda(cudaDeviceSynchronize(), "workspace");
      const PreparedScreening screening(ThresholdSource(*method.method), *kernel, limits, keys.step,
                                        workspace.data(), keys.stream.get());
      DeviceStep step = keys.step;
      screening.attach(step);
      const BoundDump dump(*kernel, step);
      kernel->launch(step, limits, workspace.data(), keys.stream.get());
      keys.stream.synchronize();
      const std::vector<float> bounds = dump.download();
      const std::vector<float> queries = host_queries(step);
      double worst = 0;
      for (int head = 0; head < 2; ++head) {
        const StepView view = view_of_group(step, {{}, queries}, 0, head);
        Records records(16, Spread::kEnvelope);
        records.extend(keys.rows(0, head));
        const std::vector<float> reference = records.bounds(view, 2);
        const Screening own =
            screening_of(view, static_cast<std::size_t>(head * group),
                         {bounds, {}, kernel->screened_block(), step.bound_stride});
        REQUIRE(own.bounds.size() == reference.size());
        for (std::size_t i = 0; i < reference.size(); ++i) {
          // Squares are rounded to 11 bits on their way into the product.
          const double error = std::abs(own.bounds[i] - reference[i]);
          worst = std::max(worst, error / (1 + std::abs(reference[i])));
        }
      }
      INFO("head size " << dim << ", group " << group);
      CHECK(worst < 1e-3);
    }
  }
}

}  // namespace
}  // namespace kvsim
