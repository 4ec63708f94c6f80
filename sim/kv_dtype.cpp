#include "sim/kv_dtype.h"

#include <array>
#include <utility>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr std::array<std::pair<std::string_view, KvFormat>, 5> kDtypes{{
    {"bf16", {16, 0, 0}},
    {"fp16", {16, 0, 0}},
    {"fp8", {8, 0, 0}},
    {"int8", {8, 0, 0}},
    {"fp4", {4, 1, 16}},
}};

}  // namespace

KvDtype parse_kv_dtype(std::string_view word) {
  for (const auto& [name, format] : kDtypes) {
    if (name == word) return {std::string(name), format};
  }
  fail<UsageError>("--kv-dtype {}: expected bf16, fp16, fp8, int8 or fp4", word);
}

KvDtype kv_dtype_of(ElementType type) {
  return parse_kv_dtype(type == ElementType::kFloat16 ? "fp16" : "bf16");
}

}  // namespace kvsim
