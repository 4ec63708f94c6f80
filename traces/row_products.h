#pragma once

#include <span>

#include "traces/rows_view.h"

namespace kvsim {

/// Dot products in float64 of all `rows` with `count` vectors: out[c, r] = rows[r] . vectors[c],
/// with `vectors` [count, rows.dim] and `out` [count, rows.rows]. Each sum runs in ascending order,
/// so the bits depend neither on threads nor on the vector width.
void row_products(const RowsView& rows, std::span<const double> vectors, int count,
                  std::span<double> out);

}  // namespace kvsim
