#pragma once

#include <cstdint>

namespace kvsim {

/// What a replay counted in one layer and step, summed over sequences and heads: exact integers
/// kept in doubles, or expectations when a sweep has no trace. Closed forms turn them into work.
struct Statistics {
  double k_rows = 0;            // distinct K rows, per KV head
  double k_requests = 0;        // K rows, per query head
  double v_rows = 0;            // distinct V rows, per KV head (GQA union)
  double v_requests = 0;        // distinct V rows, per query head
  double draws = 0;             // Σ counts: how often a V row was drawn, repeats included
  double head_tiles = 0;        // (query head, tile) pairs that drew
  double group_tiles = 0;       // (KV head, tile) pairs in which some head of the group drew
  double state_bytes_read = 0;  // what the method's state cost to consult (block records …)

  Statistics& operator+=(const Statistics& o) {
    k_rows += o.k_rows;
    k_requests += o.k_requests;
    v_rows += o.v_rows;
    v_requests += o.v_requests;
    draws += o.draws;
    head_tiles += o.head_tiles;
    group_tiles += o.group_tiles;
    state_bytes_read += o.state_bytes_read;
    return *this;
  }
  friend bool operator==(const Statistics&, const Statistics&) = default;
};

}  // namespace kvsim
