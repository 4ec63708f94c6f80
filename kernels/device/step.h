#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "core/host_device.h"
#include "core/philox.h"
#include "traces/rows_view.h"

namespace kvsim {

inline constexpr int kMaxBatch = 128;  // sequences of one launch

/// K or V of a whole batch in device memory. Strides count elements. HND and NHD differ only in
/// their strides; a paged cache has a page table, whose pages take the place of the sequence.
struct KvTensor {
  const void* data = nullptr;
  std::int64_t sequence_stride = 0;  // or from one page to the next
  std::int64_t head_stride = 0;
  std::int32_t token_stride = 0;
  const std::int32_t* pages = nullptr;  // [batch, pages_per_sequence], or null
  std::int32_t pages_per_sequence = 0;
  std::int32_t page_shift = 0;  // log2 of the tokens of a page, at least 4
};

/// A copy of K feature by feature, where one that nobody needs is not read: [batch, kv_heads,
/// blocks, head_dim, kFeatureBlock]. Strides count elements.
struct FeatureMajorKeys {
  const void* data = nullptr;  // null: there is none
  std::int64_t sequence_stride = 0;
  std::int64_t head_stride = 0;
};

/// Tokens of a block of such a copy: what a warp reads at a time, lines of 128 bytes, which then
/// lie as close together as rows of K; and a new token changes one block.
inline constexpr int kFeatureBlock = 64;

/// One layer's attention in one decode step, whole batch, as kernels take it (device pointers).
struct DeviceStep {
  ElementType type = ElementType::kBfloat16;  // of q, k and v: float16 or bfloat16
  int batch = 1;
  int q_heads = 1;
  int kv_heads = 1;
  int head_dim = 0;         // of K and V; a multiple of 8
  const void* q = nullptr;  // [batch, q_heads, head_dim], not scaled
  KvTensor k;
  KvTensor v;
  float scale = 1;
  float logit_cap = 0;                 // 0 = none
  const float* sink_logits = nullptr;  // [q_heads] or null
  std::int64_t prompt_tokens = 0;      // fixes tile widths
  RandomStream random;                 // of the first sequence and head
  void* output = nullptr;              // [batch, q_heads, head_dim], of `output_type`
  ElementType output_type = ElementType::kBfloat16;
  /// For tests and replays, or null: the kernel's own scores [batch, q_heads, dump_stride] and, for
  /// methods that select, how often each row was drawn (same shape, zeroed by the caller).
  float* scores = nullptr;
  std::uint32_t* counts = nullptr;
  std::int64_t dump_stride = 0;
  std::array<std::int32_t, kMaxBatch> contexts{};  // rows each sequence sees
  FeatureMajorKeys k_by_feature;
  /// What the method's kernel keeps beside the cache (Kernel::prepare), or null.
  const std::byte* prepared = nullptr;
  std::int64_t prepared_rows = 0;  // it has room for, in each of as many sequences
  /// Of methods that screen blocks: thresholds [batch, q_heads].
  const float* thresholds = nullptr;
  /// For tests, or null: the kernel's own bounds of blocks [batch, q_heads, bound_stride]; of
  /// teams, the logits that route to them, and, from half the stride on, ln c of those that were
  /// drawn.
  float* bounds = nullptr;
  std::int64_t bound_stride = 0;
  /// For tests, or null: how often Bernoulli scores drew each feature, [batch, q_heads, head_dim].
  std::uint32_t* feature_counts = nullptr;

  KVSIM_HD int group() const { return q_heads / kv_heads; }
};

inline std::span<const std::int32_t> contexts_of(const DeviceStep& step) {
  return {step.contexts.data(), static_cast<std::size_t>(step.batch)};
}

/// Rows of a sequence that its prompt has; all of them where that is not known.
std::int64_t prompt_rows(const DeviceStep& step, int sequence);

/// What no kernel of ours takes (float32, odd head sizes, groups above 16 …); empty if it is fine.
std::string step_refusal(const DeviceStep& step);

}  // namespace kvsim
