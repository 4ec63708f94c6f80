#include "sim/scaled_statistics.h"

#include <algorithm>

namespace kvsim {

// A field added to Statistics must be added to the table too.
static_assert(sizeof(Statistics) == kStatisticsFields.size() * sizeof(double));

Statistics scaled(const Statistics& statistics, double factor) {
  Statistics result;
  for (const auto& [name, field] : kStatisticsFields) result.*field = statistics.*field * factor;
  return result;
}

Statistics carried_over(const Statistics& measured, const Method::Bounds& there,
                        const Method::Bounds& here) {
  Statistics result;
  for (const auto& [name, field] : kStatisticsFields) {
    const double width = there.high.*field - there.low.*field;
    const double place =
        width > 0 ? std::clamp((measured.*field - there.low.*field) / width, 0.0, 1.0) : 1.0;
    result.*field = here.low.*field + place * (here.high.*field - here.low.*field);
  }
  return result;
}

}  // namespace kvsim
