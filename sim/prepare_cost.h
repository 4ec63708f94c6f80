#pragma once

#include <optional>

#include "kernels/implementation.h"
#include "sim/cost.h"
#include "sim/json.h"

namespace kvsim {

/// What making a method's state of a layer's prompts costs on a GPU, once; its time from the least
/// to the most that the data may ask for. None: there is no model, or no state.
std::optional<StepCost> prepare_cost(const Implementation& implementation, const Shape& prompts,
                                     const Target& target);

/// Of a method, means per layer.
struct PrepareFigures {
  bool keeps_state = false;
  double bytes = 0;               // moved to make it
  const CostSum* cost = nullptr;  // of making it; null or no steps: no model
  double dense_us = 0;            // attention of a step
  double method_us = 0;
};

/// {bytes, predicted_us, terms, repaid_after_tokens}: after how many steps dense attention would
/// have taken as much longer as the preparation took.
Json prepare_json(const PrepareFigures& figures);

}  // namespace kvsim
