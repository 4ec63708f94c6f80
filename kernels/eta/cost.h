#pragma once

#include <memory>

#include "kernels/eta/blocks.h"
#include "kernels/eta/rule.h"
#include "kernels/implementation.h"

namespace kvsim::eta {

/// Ours: one persistent launch that screens and attends, whose CTAs exchange partial results;
/// published: a CTA to each chunk, and a second launch that adds chunks up (algorithm 4).
std::unique_ptr<Implementation> make_cost(bool published, int block, const BlockRule& rule,
                                          Gate gate);

}  // namespace kvsim::eta
