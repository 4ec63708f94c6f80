#pragma once

#include <string>
#include <string_view>

#include "kernels/shape.h"
#include "traces/rows_view.h"

namespace kvsim {

/// How many bits an element of the cache has when bytes are counted. The replayed values themselves
/// stay as the trace stored them.
struct KvDtype {
  std::string name;
  KvFormat format;
};

/// bf16, fp16, fp8, int8 (one scale per tensor, no bytes per row) or fp4 (NVFP4: one scale byte for
/// 16 elements). Throws UsageError.
KvDtype parse_kv_dtype(std::string_view word);

/// The type a cache of this trace has in an engine: its own, but bf16 for a float32 trace, since no
/// engine keeps a float32 cache.
KvDtype kv_dtype_of(ElementType type);

}  // namespace kvsim
