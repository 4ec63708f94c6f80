#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/row_ranges.h"

namespace kvsim {

/// A list of indices as typed, "0,7-9". The default is everything there is.
class IndexList {
 public:
  IndexList() = default;
  /// `flag` ("--layers") is named in messages. Throws UsageError for anything but indices and
  /// ascending ranges separated by commas.
  static IndexList parse(std::string_view text, std::string flag);

  bool everything() const { return ranges_.empty(); }
  /// The members of `available` (ascending) that the list names. Throws UsageError if the list
  /// names an index that is not there; `where` says what was looked through ("trace x.h5").
  std::vector<std::int64_t> pick(std::span<const std::int64_t> available,
                                 std::string_view where) const;

 private:
  std::string flag_;
  std::vector<Range> ranges_;
};

}  // namespace kvsim
