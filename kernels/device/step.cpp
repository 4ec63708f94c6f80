#include "kernels/device/step.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvsim {

std::int64_t prompt_rows(const DeviceStep& step, int sequence) {
  const std::int64_t context = step.contexts[static_cast<std::size_t>(sequence)];
  return step.prompt_tokens > 0 ? std::min(step.prompt_tokens, context) : context;
}

std::string step_refusal(const DeviceStep& step) {
  if (step.type == ElementType::kFloat32) return "float32 caches, expected float16 or bfloat16";
  if (step.head_dim < 8 || step.head_dim > 256 || step.head_dim % 8 != 0) {
    return fmt::format("head size {}, expected a multiple of 8 up to 256", step.head_dim);
  }
  if (step.group() > 16) return fmt::format("group {}, expected at most 16", step.group());
  if (step.batch < 1 || step.batch > kMaxBatch) {
    return fmt::format("batch {}, expected 1 to {}", step.batch, kMaxBatch);
  }
  for (int i = 0; i < step.batch; ++i) {
    const std::int32_t context = step.contexts[static_cast<std::size_t>(i)];
    if (context < 1) return fmt::format("context {}, expected at least 1", context);
  }
  for (const KvTensor& tensor : {step.k, step.v}) {
    const bool aligned = tensor.token_stride % 8 == 0 && tensor.head_stride % 8 == 0 &&
                         tensor.sequence_stride % 8 == 0;
    if (!aligned) return "strides that are not multiples of 16 bytes";
    if (tensor.pages != nullptr && tensor.page_shift < 4) return "pages of fewer than 16 tokens";
  }
  return "";
}

}  // namespace kvsim
