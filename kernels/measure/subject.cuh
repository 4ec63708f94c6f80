#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device/buffer.cuh"
#include "kernels/device/kernel.h"
#include "kernels/measure/gpu.h"
#include "kernels/measure/kept_states.cuh"
#include "kernels/measure/kv_copies.cuh"
#include "kernels/measure/screening.cuh"
#include "kernels/measure/selection.h"
#include "kernels/method.h"

namespace kvsim {

/// A case as methods take it; `contexts` are its own, and must outlive the result.
Shape shape_of(const MeasureCase& shape, std::span<const std::int64_t> contexts);

/// One method under measurement: its kernel, workspace, and what is checked of its results.
class Subject {
 public:
  /// Throws UsageError if the method has no kernel or its kernel refuses the shape; RuntimeError if
  /// that is a trace's.
  Subject(const std::string& spec, KvCopies& copies, const MeasureCase& shape,
          const DeviceLimits& limits, const Stream& stream);

  const std::string& spec() const { return spec_; }
  void enqueue(const KvCopies& copies, int copy, cudaStream_t stream) const;

  /// Runs copy 0 three times into poisoned outputs, the second time with dumps, and fills
  /// statistics, floor and errors of `times`. Of a method that screens blocks or routes to teams
  /// only the first sequences are checked where the dumps of all would be too large.
  void check(KvCopies& copies, const MeasureCase& shape, const Stream& stream, MethodTimes& times);
  /// Once more, after the timing: the bytes must be the same.
  void check_again(KvCopies& copies, const Stream& stream, MethodTimes& times) const;

 private:
  /// What reads a copy, with what this method's kernel prepared for it.
  DeviceStep step_of(const KvCopies& copies, int copy) const;
  /// Zeroed, and of what a launch on the step takes at least.
  void clear_workspace(const DeviceStep& step);
  void keep_states(const KvCopies& copies, const MeasureCase& shape, const Stream& stream);
  Statistics statistics_of_bounds(const KvCopies& copies, const Stream& stream) const;
  ScreeningDump screening_dump(std::span<const float> bounds, std::int64_t stride) const;
  HostInputs host_inputs() const;
  /// Copy 0's output after one call without dumps.
  std::vector<std::byte> run_plain(KvCopies& copies, const Stream& stream) const;

  struct HostDumps {
    std::vector<float> scores;  // empty: the kernel dumps none
    std::vector<std::uint32_t> counts;
    std::vector<std::uint32_t> feature_counts;  // empty: the kernel draws none
    std::vector<float> bounds;                  // empty: it has none
    std::int64_t bound_stride = 0;
    std::int64_t draws = 0;
  };
  HostDumps run_with_dumps(const KvCopies& copies, const MeasureCase& shape,
                           const Stream& stream) const;
  /// The weights of the output, empty for softmax over all rows; fills statistics, differences and
  /// the floor of K.
  std::vector<double> weights_of(const DeviceStep& step, const MeasureCase& shape,
                                 const HostDumps& dumps, MethodTimes& times) const;

  std::string spec_;
  NamedMethod method_;
  std::unique_ptr<Kernel> kernel_;
  DeviceLimits limits_;
  DeviceBuffer<std::byte> workspace_;
  std::vector<PreparedScreening> screenings_;  // of each copy, or nothing
  std::vector<KeptStates> kept_;               // of each copy, or nothing
  std::vector<std::byte> first_output_;
};

}  // namespace kvsim
