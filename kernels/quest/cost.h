#pragma once

#include <memory>

#include "kernels/implementation.h"
#include "kernels/quest/rule.h"

namespace kvsim::quest {

/// Ours: a plan of one persistent launch, for which there is no kernel yet; published: the released
/// kernels, a launch each (append, estimate, top-k, attention, merge).
std::unique_ptr<Implementation> make_cost(bool published, const PageRule& rule);

}  // namespace kvsim::quest
