#include "kernels/cache_of_layer.h"

namespace kvsim {

CacheView cache_of_layer(const TraceLayer& layer, int kv_head, std::int64_t rows) {
  const LayerInfo& info = layer.info;
  CacheView result{layer.keys(kv_head).slice(0, rows), layer.values(kv_head).slice(0, rows)};
  result.scale = static_cast<float>(info.scale);
  result.logit_cap = static_cast<float>(info.logit_cap);
  if (!layer.prepared.empty()) result.prepared = &layer.prepared;
  result.kv_head = kv_head;
  if (!layer.probe) return result;
  const int first = kv_head * info.group();
  for (int head = first; head < first + info.group(); ++head) {
    result.probes.push_back(layer.probe_queries(head));
  }
  return result;
}

}  // namespace kvsim
