#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "kernels/method.h"

namespace kvsim {

/// Every field of Statistics by name, for code that treats them alike.
using StatisticsField = double Statistics::*;
inline constexpr std::array<std::pair<std::string_view, StatisticsField>, 13> kStatisticsFields{{
    {"k_rows", &Statistics::k_rows},
    {"k_requests", &Statistics::k_requests},
    {"v_rows", &Statistics::v_rows},
    {"v_requests", &Statistics::v_requests},
    {"draws", &Statistics::draws},
    {"head_tiles", &Statistics::head_tiles},
    {"group_tiles", &Statistics::group_tiles},
    {"k_features", &Statistics::k_features},
    {"k_feature_requests", &Statistics::k_feature_requests},
    {"k_chunks", &Statistics::k_chunks},
    {"query_hits", &Statistics::query_hits},
    {"state_bytes_read", &Statistics::state_bytes_read},
    {"routing_vectors", &Statistics::routing_vectors},
}};

Statistics scaled(const Statistics& statistics, double factor);

/// What a method would count on another shape (context, heads, batch): every field keeps its place
/// between the least and the most the method can read there. So a fixed budget stays fixed, a share
/// of the context stays a share, and counts follow the number of heads.
Statistics carried_over(const Statistics& measured, const Method::Bounds& there,
                        const Method::Bounds& here);

}  // namespace kvsim
