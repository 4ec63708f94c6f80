#pragma once

#include "kernels/implementation.h"
#include "kernels/santapp/settings.h"

namespace kvsim::santapp {

/// What a GPU would take to form the teams of all prompts and to pack them
/// (docs/methods/santapp.md): a model of counted work; only packing has a kernel (pack.cu).
Preparation prepare_teams(const Shape& shape, const Settings& settings, const DeviceLimits& limits);

}  // namespace kvsim::santapp
