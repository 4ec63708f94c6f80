#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <span>
#include <vector>

#include "kernels/device/step.h"

namespace kvsim {

/// Attention of a step in float64 on the GPU, from the stored K, V and queries: softmax over all
/// rows, or, with `weights` [batch, q_heads, dump_stride] (host memory), their weighted sum.
/// Returns [batch, q_heads, head_dim].
std::vector<double> float64_output(const DeviceStep& step, std::span<const double> weights,
                                   cudaStream_t stream);

/// Queries in place of a step's own, and a factor for each head's products in place of its scale.
struct OtherQueries {
  std::vector<float> values;  // [batch, q_heads, head_dim]
  std::vector<float> scales;  // [batch, q_heads]
};

/// The logits that `float64_output` takes the softmax of, after scale and cap, or those of other
/// queries: [batch, q_heads, dump_stride], NaN behind a sequence's rows.
std::vector<double> float64_scores(const DeviceStep& step, cudaStream_t stream,
                                   const OtherQueries& queries = {});

/// A step's queries, [batch, q_heads, head_dim], from the GPU.
std::vector<float> host_queries(const DeviceStep& step);

/// ‖output − reference‖ / ‖reference‖ of elements of `type` (float32 too); empty if an output is
/// not finite.
std::optional<double> relative_l2(std::span<const std::byte> output, ElementType type,
                                  std::span<const double> reference);

}  // namespace kvsim
