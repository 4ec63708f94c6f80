#include "traces/row_products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr int kTile = 32;

/// A tile of rows as float64, transposed, so that the sums of its rows run side by side.
class TransposedTile {
 public:
  explicit TransposedTile(int dim)
      : dim_(dim), rows_(static_cast<std::size_t>(dim * kTile)), columns_(rows_.size()) {}

  void load(const RowsView& view, std::int64_t begin, std::int64_t end) {
    load_rows(view, begin, end, dim_, rows_.data());
    const auto count = static_cast<int>(end - begin);
    for (int j = 0; j < dim_; ++j) {
      double* column = columns_.data() + j * kTile;
      for (int r = 0; r < count; ++r) column[r] = rows_[static_cast<std::size_t>(r * dim_ + j)];
      std::fill(column + count, column + kTile, 0.0);
    }
  }

  std::array<double, kTile> dot(const double* vector) const {
    alignas(64) std::array<double, kTile> sums{};
    for (int j = 0; j < dim_; ++j) {
      const double* column = columns_.data() + j * kTile;
#pragma omp simd
      for (int r = 0; r < kTile; ++r) {
        sums[static_cast<std::size_t>(r)] =
            std::fma(column[r], vector[j], sums[static_cast<std::size_t>(r)]);
      }
    }
    return sums;
  }

 private:
  int dim_;
  std::vector<float> rows_;
  std::vector<double> columns_;
};

}  // namespace

void row_products(const RowsView& rows, std::span<const double> vectors, int count,
                  std::span<double> out) {
  KVSIM_CHECK(vectors.size() ==
              static_cast<std::size_t>(count) * static_cast<std::size_t>(rows.dim));
  KVSIM_CHECK(out.size() == static_cast<std::size_t>(count) * static_cast<std::size_t>(rows.rows));
  TransposedTile tile(rows.dim);
  for (std::int64_t begin = 0; begin < rows.rows; begin += kTile) {
    const std::int64_t end = std::min<std::int64_t>(begin + kTile, rows.rows);
    tile.load(rows, begin, end);
    for (int c = 0; c < count; ++c) {
      const auto sums = tile.dot(vectors.data() + static_cast<std::ptrdiff_t>(c) * rows.dim);
      std::copy_n(sums.begin(), end - begin, out.begin() + c * rows.rows + begin);
    }
  }
}

}  // namespace kvsim
