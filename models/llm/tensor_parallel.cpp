#include <algorithm>

#include "core/error.h"
#include "models/llm/llm.h"

namespace kvsim {

Llm share_of_llm(const Llm& llm, int gpus) {
  if (gpus < 1) fail<UsageError>("{} GPUs, expected at least 1", gpus);
  if (llm.q_heads % gpus != 0 || (llm.kv_heads % gpus != 0 && gpus % llm.kv_heads != 0)) {
    fail<UsageError>("{} query heads and {} KV heads of {} cannot be dealt out to {} GPUs",
                     llm.q_heads, llm.kv_heads, llm.name, gpus);
  }
  Llm share = llm;
  share.tensor_parallel = gpus;
  share.q_heads = llm.q_heads / gpus;
  share.kv_heads = std::max(1, llm.kv_heads / gpus);
  // The projections of replicated KV heads are on several GPUs; norms, few bytes, count as divided.
  const double more_heads = share.kv_heads - static_cast<double>(llm.kv_heads) / gpus;
  const double replicated = more_heads * llm.layers * static_cast<double>(llm.hidden) *
                            (llm.head_dim + llm.v_head_dim) * llm.weight_bytes_per_element;
  share.stored_weight_bytes = llm.stored_weight_bytes / gpus + replicated;
  share.streamed_weight_bytes = llm.streamed_weight_bytes / gpus + replicated;
  share.kv_bytes_per_token = llm.kv_bytes_per_token * share.kv_heads / llm.kv_heads;
  return share;
}

}  // namespace kvsim
