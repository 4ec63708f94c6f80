#include "traces/rows_view.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/float16.h"

namespace kvsim {
namespace {

void load_float32(const std::byte* source, std::int64_t count, float* out) {
  std::memcpy(out, source, sizeof(float) * static_cast<std::size_t>(count));
}

template <float (*kConvert)(std::uint16_t)>
void load_16bit(const std::byte* source, std::int64_t count, float* out) {
  const auto* bits = reinterpret_cast<const std::uint16_t*>(source);
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) out[i] = kConvert(bits[i]);
}

using Load = void (*)(const std::byte*, std::int64_t, float*);

Load loader(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
      return load_16bit<fp16_to_float>;
    case ElementType::kBfloat16:
      return load_16bit<bf16_to_float>;
    case ElementType::kFloat32:
      break;
  }
  return load_float32;
}

template <std::uint16_t (*kConvert)(float)>
void store_16bit(const float* values, std::int64_t count, std::byte* out) {
  auto* bits = reinterpret_cast<std::uint16_t*>(out);
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) bits[i] = kConvert(values[i]);
}

}  // namespace

std::string_view to_string(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kBfloat16:
      return "bfloat16";
    case ElementType::kFloat32:
      break;
  }
  return "float32";
}

void load_rows(const RowsView& view, std::int64_t begin, std::int64_t end, int padded_dim,
               float* out) {
  const Load load = loader(view.type);
  if (view.stride == padded_dim && view.dim == padded_dim) {  // nothing between the rows
    return load(view.row(begin), (end - begin) * padded_dim, out);
  }
  for (std::int64_t row = begin; row < end; ++row, out += padded_dim) {
    load(view.row(row), view.dim, out);
    std::fill(out + view.dim, out + padded_dim, 0.0f);
  }
}

void store_values(const float* values, std::int64_t count, ElementType type, std::byte* out) {
  switch (type) {
    case ElementType::kFloat16:
      return store_16bit<float_to_fp16>(values, count, out);
    case ElementType::kBfloat16:
      return store_16bit<float_to_bf16>(values, count, out);
    case ElementType::kFloat32:
      break;
  }
  std::memcpy(out, values, sizeof(float) * static_cast<std::size_t>(count));
}

}  // namespace kvsim
