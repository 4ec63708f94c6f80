#pragma once

#include <memory>
#include <string>

#include "kernels/implementation.h"

namespace kvsim {

/// "ours": one persistent launch, whose CTAs exchange partial results; "published": FlashDecoding's
/// split and combine launches.
std::unique_ptr<Implementation> make_dense_cost(const std::string& implementation);

}  // namespace kvsim
