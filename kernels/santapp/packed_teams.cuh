#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace kvsim::santapp {

/// A prompt's cache team by team, in device memory: for every (sequence, KV head) its rows of K and
/// V in the order of their teams, and what routes to a team in rows of the same type. Rows that
/// route are zero behind the last team.
struct PackedTeams {
  struct Header {
    std::int32_t teams;
    std::int32_t rows;
    std::int32_t padding[2];
  };

  std::byte* data = nullptr;
  std::int64_t rows = 0;   // room for so many
  std::int64_t teams = 0;  // and so many, a multiple of 16
  std::int32_t head_dim = 0;

  KVSIM_HD std::int64_t row_bytes() const { return std::int64_t{2} * head_dim; }
  KVSIM_HD static std::int64_t padded(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

  KVSIM_HD std::int64_t starts_at() const { return sizeof(Header); }
  KVSIM_HD std::int64_t members_at() const { return starts_at() + padded(4 * (teams + 1)); }
  KVSIM_HD std::int64_t routes_at() const { return members_at() + padded(4 * rows); }
  KVSIM_HD std::int64_t keys_at() const { return routes_at() + teams * row_bytes(); }
  KVSIM_HD std::int64_t values_at() const { return keys_at() + rows * row_bytes(); }
  /// Of one (sequence, KV head).
  KVSIM_HD std::int64_t group_bytes() const { return values_at() + rows * row_bytes(); }

  KVSIM_HD std::byte* group(std::int64_t number) const { return data + number * group_bytes(); }
  KVSIM_HD Header* header(std::int64_t number) const {
    return reinterpret_cast<Header*>(group(number));
  }
  /// Of a team's first member among all: [teams + 1]; behind the last team all of them.
  KVSIM_HD std::int32_t* starts(std::int64_t number) const {
    return reinterpret_cast<std::int32_t*>(group(number) + starts_at());
  }
  /// Which rows of the cache they are: [rows].
  KVSIM_HD std::int32_t* members(std::int64_t number) const {
    return reinterpret_cast<std::int32_t*>(group(number) + members_at());
  }
  template <typename T>
  KVSIM_HD T* routes(std::int64_t number) const {  // [teams, head_dim]
    return reinterpret_cast<T*>(group(number) + routes_at());
  }
  template <typename T>
  KVSIM_HD T* keys(std::int64_t number) const {  // [rows, head_dim]
    return reinterpret_cast<T*>(group(number) + keys_at());
  }
  template <typename T>
  KVSIM_HD T* values(std::int64_t number) const {  // [rows, head_dim]
    return reinterpret_cast<T*>(group(number) + values_at());
  }
};

}  // namespace kvsim::santapp
