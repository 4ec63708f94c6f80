#include <algorithm>

#include "models/llm/llm.h"

namespace kvsim {

MemoryNeed memory_need(const Llm& llm, const MemorySystem& memory, const KvFormat& format,
                       const CacheLayout& layout, std::int64_t context, double batch) {
  const std::int64_t page = layout.kind == LayoutKind::kPaged ? layout.page_tokens : 1;
  double rows = 0;  // of one KV head, over all layers
  for (int layer = 0; layer < llm.layers; ++layer) {
    const auto index = static_cast<std::size_t>(layer);
    const std::int64_t window = index < llm.windows.size() ? llm.windows[index] : 0;
    const std::int64_t kept = window > 0 ? std::min(window, context) : context;
    const std::int64_t pages = (kept + page - 1) / page;
    rows += static_cast<double>(pages * page);
  }
  const double row_bytes = format.row_bytes(llm.head_dim) + format.row_bytes(llm.v_head_dim);
  return {llm.stored_weight_bytes, batch * rows * llm.kv_heads * row_bytes, memory.capacity_bytes};
}

}  // namespace kvsim
