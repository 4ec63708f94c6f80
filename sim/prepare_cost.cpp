#include "sim/prepare_cost.h"

#include <algorithm>

namespace kvsim {
namespace {

StepCost cost_of(const Work& work, const Shape& shape, const Target& target) {
  return step_cost(work, shape, target, nullptr);
}

void add_repayment(const PrepareFigures& figures, double prepare_us, Json& json) {
  const double saved_us = figures.dense_us - figures.method_us;
  if (saved_us > 0) {
    json["repaid_after_tokens"] = finite(prepare_us / saved_us);
    return;
  }
  json["repaid_after_tokens"] = nullptr;
  json["repaid_after_tokens_reason"] = "its attention takes no less time than dense attention";
}

}  // namespace

std::optional<StepCost> prepare_cost(const Implementation& implementation, const Shape& prompts,
                                     const Target& target) {
  const auto preparation = implementation.preparation(prompts, target.machine.limits);
  if (!preparation) return std::nullopt;
  StepCost cost = cost_of(preparation->usual, prompts, target);
  Estimate& us = cost.time.total_us;
  const Estimate least = cost_of(preparation->least, prompts, target).time.total_us;
  const Estimate most = cost_of(preparation->most, prompts, target).time.total_us;
  us = {us.value, std::min(us.low, least.low), std::max(us.high, most.high),
        std::max(us.source, Source::kDerived)};
  return cost;
}

Json prepare_json(const PrepareFigures& figures) {
  Json json{{"bytes", finite(figures.bytes)}};
  const bool modelled = figures.cost != nullptr && figures.cost->steps > 0;
  if (modelled) {
    const Estimate us = figures.cost->mean(figures.cost->us);
    json["predicted_us"] = json_of(us);
    json["terms"] = terms_json(*figures.cost);
    add_repayment(figures, us.value, json);
    return json;
  }
  const char* reason = "no model of building this method's state";
  if (figures.keeps_state) {
    json["predicted_us"] = nullptr;
    json["predicted_us_reason"] = reason;
  } else {
    json["predicted_us"] = json_of(exactly(0));
  }
  json["terms"] = Json::array();
  json["repaid_after_tokens"] = nullptr;
  json["repaid_after_tokens_reason"] = figures.keeps_state ? reason : "nothing is prepared";
  return json;
}

}  // namespace kvsim
