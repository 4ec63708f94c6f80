#pragma once

// One set of names for Catch2 2 (Debian 12) and 3 (Ubuntu 24.04).
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
namespace kvsim::testing {
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
}  // namespace kvsim::testing
#else
#include <catch2/catch.hpp>
namespace kvsim::testing {
using ::Approx;
inline auto ContainsSubstring(const std::string& text) { return Catch::Contains(text); }
}  // namespace kvsim::testing
#endif
