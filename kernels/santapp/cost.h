#pragma once

#include <memory>

#include "kernels/implementation.h"
#include "kernels/santapp/settings.h"

namespace kvsim::santapp {

std::unique_ptr<Implementation> make_cost(const Settings& settings);

}  // namespace kvsim::santapp
