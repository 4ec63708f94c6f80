#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvsim {

enum class ElementType { kFloat32, kFloat16, kBfloat16 };

constexpr int bytes_of(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }
std::string_view to_string(ElementType type);

/// Rows of `dim` stored elements, `stride` elements apart; does not own them.
struct RowsView {
  const std::byte* data = nullptr;
  ElementType type = ElementType::kFloat32;
  std::int64_t rows = 0;
  int dim = 0;
  std::int64_t stride = 0;

  const std::byte* row(std::int64_t index) const { return data + index * stride * bytes_of(type); }
  RowsView slice(std::int64_t begin, std::int64_t end) const {
    return {row(begin), type, end - begin, dim, stride};
  }
};

/// Converts rows [begin, end) to float32, exactly, into `out` [end - begin, padded_dim], whose
/// columns from `dim` to `padded_dim` are set to zero.
void load_rows(const RowsView& view, std::int64_t begin, std::int64_t end, int padded_dim,
               float* out);

/// Rounds `count` values to `type`, to nearest with ties to even.
void store_values(const float* values, std::int64_t count, ElementType type, std::byte* out);

}  // namespace kvsim
