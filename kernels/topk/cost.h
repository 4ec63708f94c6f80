#pragma once

#include <memory>
#include <string>

#include "kernels/implementation.h"

namespace kvsim {

/// "ours": one cooperative launch that finds the boundary key by up to four rounds of histograms,
/// two team exchanges each, keys staying on chip; "published": three launches with scores and
/// indices through memory.
std::unique_ptr<Implementation> make_topk_cost(const std::string& implementation);

}  // namespace kvsim
