#pragma once

#include <cstdint>

#include "kernels/method.h"
#include "traces/trace.h"

namespace kvsim {

/// The first `rows` rows of a KV head of a trace's layer, which must outlive the view.
CacheView cache_of_layer(const TraceLayer& layer, int kv_head, std::int64_t rows);

}  // namespace kvsim
