#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim::santapp {

/// Keys 0 … n - 1 in disjoint parts, none empty; the keys of a part ascend.
struct Partition {
  std::vector<std::int32_t> members;  // [keys], part by part
  std::vector<std::int32_t> starts;   // [parts + 1]

  /// Key i belongs to part labels[i]; labels that nobody has are left out.
  static Partition of_labels(std::span<const std::int32_t> labels, std::int32_t count);

  std::int32_t parts() const { return static_cast<std::int32_t>(starts.size()) - 1; }
  std::int32_t size(std::int32_t part) const {
    const auto p = static_cast<std::size_t>(part);
    return starts[p + 1] - starts[p];
  }
  std::span<const std::int32_t> part(std::int32_t part) const {
    return std::span(members).subspan(
        static_cast<std::size_t>(starts[static_cast<std::size_t>(part)]),
        static_cast<std::size_t>(size(part)));
  }
  friend bool operator==(const Partition&, const Partition&) = default;
};

}  // namespace kvsim::santapp
