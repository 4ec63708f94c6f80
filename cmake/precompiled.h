#pragma once

// What most sources spend their time on (KVSIM_PRECOMPILE). Builds without it tell whether every
// source includes what it needs.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>
