#pragma once

#include <cstdint>

namespace kvsim {

/// Neighbouring features of a K row that share 32 bytes, a sector, if elements have 16 bits.
inline constexpr int kChunkFeatures = 16;

/// What a replay counted in one layer and step, summed over sequences and heads: exact integers
/// kept in doubles, or expectations when a sweep has no trace. Closed forms turn them into work.
struct Statistics {
  double k_rows = 0;              // distinct K rows, per KV head
  double k_requests = 0;          // K rows, per query head
  double v_rows = 0;              // distinct V rows, per KV head (GQA union)
  double v_requests = 0;          // distinct V rows, per query head
  double draws = 0;               // Σ counts: how often a V row was drawn, repeats included
  double head_tiles = 0;          // (query head, tile) pairs that drew
  double group_tiles = 0;         // (KV head, tile) pairs in which some head of the group drew
  double k_features = 0;          // features of K read, per KV head (GQA union); exact: all
  double k_feature_requests = 0;  // the same, per query head
  double k_chunks = 0;            // chunks of kChunkFeatures that hold a feature read, per KV head
  double query_hits = 0;          // Σ counts of drawn query features, per query head; exact: 0
  double state_bytes_read = 0;    // what the method's state cost to consult (block records …)
  double routing_vectors = 0;     // read of the state to choose rows by, in head_dim elements

  Statistics& operator+=(const Statistics& o) {
    k_rows += o.k_rows;
    k_requests += o.k_requests;
    v_rows += o.v_rows;
    v_requests += o.v_requests;
    draws += o.draws;
    head_tiles += o.head_tiles;
    group_tiles += o.group_tiles;
    k_features += o.k_features;
    k_feature_requests += o.k_feature_requests;
    k_chunks += o.k_chunks;
    query_hits += o.query_hits;
    state_bytes_read += o.state_bytes_read;
    routing_vectors += o.routing_vectors;
    return *this;
  }
  friend bool operator==(const Statistics&, const Statistics&) = default;
};

}  // namespace kvsim
