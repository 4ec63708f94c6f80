#include <cmath>
#include <cstring>

#include "core/float16.h"
#include "tests/catch.h"
#include "tests/traces/trace_testing.h"
#include "traces/finite.h"
#include "traces/row_products.h"

namespace kvsim::testing {

TEST_CASE("the first value that is not finite is found wherever it is") {
  const auto type = GENERATE(ElementType::kFloat32, ElementType::kFloat16, ElementType::kBfloat16);
  constexpr std::int64_t kCount = 10007;
  HostTensor tensor = random_tensor(type, 1, 1, kCount, 1);
  CHECK_FALSE(first_unusable(tensor.data, type).has_value());
  for (const float bad : {INFINITY, -INFINITY, NAN, 3e38f, -0x1p40f}) {
    if (type == ElementType::kFloat16 && std::abs(bad) < INFINITY) continue;  // beyond float16
    for (const std::int64_t index : {0, 1, 4095, 4096, 9999, 10006}) {
      HostTensor broken = tensor;
      store_values(&bad, 1, type, broken.data.data() + index * bytes_of(type));
      store_values(&bad, 1, type, broken.data.data() + 10006 * bytes_of(type));
      CHECK(first_unusable(broken.data, type) == index);
    }
  }
  CHECK_FALSE(first_unusable({}, type).has_value());
}

TEST_CASE("no usable 16-bit value is taken for another, and none is missed") {
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBfloat16}) {
    int wrong = 0;
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      const bool half = type == ElementType::kFloat16;
      const float value = half ? fp16_to_float(bits) : bf16_to_float(bits);
      const bool usable = std::abs(value) < 0x1p40f;  // false for NaN
      const auto found = first_unusable(std::as_bytes(std::span(&bits, 1)), type);
      wrong += found.has_value() == usable ? 1 : 0;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("rows are stored and loaded with padding and stride") {
  const auto type = GENERATE(ElementType::kFloat32, ElementType::kFloat16, ElementType::kBfloat16);
  const HostTensor tensor = random_tensor(type, 1, 9, 12, 4);
  const std::vector<float> values = values_of(tensor);
  RowsView view = tensor.rows(0);
  view.dim = 5;
  std::vector<float> out(3 * 8, -1.0f);
  load_rows(view, 2, 5, 8, out.data());
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t j = 0; j < 8; ++j) {
      CHECK(out[row * 8 + j] == (j < 5 ? values[(row + 2) * 12 + j] : 0.0f));
    }
  }
  CHECK(view.slice(2, 5).rows == 3);
  CHECK(view.slice(2, 5).row(1) == view.row(3));
}

TEST_CASE("products of rows and vectors equal the sums written out") {
  const auto type = GENERATE(ElementType::kFloat32, ElementType::kBfloat16);
  const HostTensor tensor = random_tensor(type, 1, 77, 24, 5);
  const std::vector<float> rows = values_of(tensor);
  const std::vector<float> wide = values_of(random_tensor(ElementType::kFloat32, 1, 3, 24, 6));
  const std::vector<double> vectors(wide.begin(), wide.end());
  std::vector<double> out(3 * 77);
  row_products(tensor.rows(0), vectors, 3, out);
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t r = 0; r < 77; ++r) {
      double sum = 0;
      for (std::size_t j = 0; j < 24; ++j)
        sum = std::fma(rows[r * 24 + j], vectors[c * 24 + j], sum);
      REQUIRE(out[c * 77 + r] == sum);
    }
  }
}

}  // namespace kvsim::testing
