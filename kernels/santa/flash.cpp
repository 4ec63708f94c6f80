// santa-flash: every tile draws as many samples as any other, so none waits for the head's mass;
// what a tile drew is weighed by its mass afterwards (SANTA §3.3).

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/santa/budgets.h"
#include "kernels/santa/flash_cost.h"
#include "kernels/santa/released.h"
#include "kernels/santa/rule.h"
#include "kernels/santa/samplers.h"
#include "kernels/santa/santa.h"

namespace kvsim {
namespace {

class FlashSanta : public SantaMethod {
 public:
  FlashSanta(const FlashCostModel& model, Offsets offsets, bool released)
      : SantaMethod(model.samples, offsets, model.scoring, make_flash_cost(model)),
        model_(model),
        released_(released) {}

  Bounds bounds(const Shape& shape) const override;

 protected:
  Draws draw(const StepView& view, std::span<const float> scores, int g) const override {
    const int tile = model_.tile > 0 ? model_.tile : budget_tile(view.prompt_tokens);
    const HeadDistribution head(scores, tile);
    Draws draws;
    draws.mass_of_rows = mass_of_rows(view, head, g);
    if (released_) {
      const std::uint32_t query_head = view.random.head + static_cast<std::uint32_t>(g);
      ReleasedSelection released = released_flash(scores, tile, samples(), query_head);
      draws.rows = std::move(released.rows);
      draws.weights = std::move(released.weights);
      draws.drawn_tiles = tiles_with(released.budgets);
      return draws;
    }
    std::vector<std::uint32_t> budgets = even_budgets(head.tiles(), samples());
    for (int t = 0; t < head.tiles(); ++t) {  // a tile whose scores are all -infinity draws nothing
      if (head.tile_units(t) == 0) budgets[static_cast<std::size_t>(t)] = 0;
    }
    draws.rows = rows_of_budgets(head, budgets, tile_offsets(view, g, head.tiles()));
    draws.drawn_tiles = tiles_with(budgets);
    for (int t = 0; t < head.tiles(); ++t) {
      const std::uint32_t budget = budgets[static_cast<std::size_t>(t)];
      const double share =
          static_cast<double>(head.tile_mass(t)) / static_cast<double>(head.total());
      if (budget > 0) {
        draws.weights.insert(draws.weights.end(), budget, static_cast<float>(share / budget));
      }
    }
    return draws;
  }

 private:
  FlashCostModel model_;
  bool released_;
};

/// How often is certain, how many distinct rows is not: at least one of a tile.
Method::Bounds FlashSanta::bounds(const Shape& shape) const {
  Bounds bounds;
  for (const std::int64_t context : shape.contexts) {
    const auto n = static_cast<double>(context);
    const double tiles = std::ceil(n / tile_of(model_, shape));
    const double draws = draws_of(model_, shape, context);
    Statistics low;
    low.k_rows = n * shape.kv_heads;
    low.k_requests = n * shape.q_heads;
    low.v_rows = tiles * shape.kv_heads;  // all heads of a group draw the same row of a tile
    low.v_requests = tiles * shape.q_heads;
    low.draws = draws * shape.q_heads;
    low.head_tiles = tiles * shape.q_heads;
    low.group_tiles = tiles * shape.kv_heads;
    Statistics high = low;
    high.v_rows = std::min(n, draws * shape.group()) * shape.kv_heads;
    high.v_requests = std::min(n, draws) * shape.q_heads;
    bounds.low += low;
    bounds.high += high;
  }
  model_.scoring.add_bounds(shape, bounds);
  return bounds;
}

std::unique_ptr<Method> make_flash(const Parameters& parameters) {
  const Offsets offsets = offsets_of(parameters);
  const bool released = parameters.choice("mode") == "released";
  const bool per_tile = released || offsets == Offsets::kPerTile;
  const FlashCostModel model{
      .samples = static_cast<std::uint32_t>(parameters.integer("samples", 1, kMaxSamples)),
      .tile = static_cast<int>(parameters.integer("tile", 0, 256)),
      .even = released,
      .random_words = per_tile
                          ? FlashCostModel::RandomWords::kPerTile
                          : (offsets == Offsets::kShared ? FlashCostModel::RandomWords::kPerGroup
                                                         : FlashCostModel::RandomWords::kPerHead),
      .published = parameters.choice("implementation") == "published",
      .scoring = scoring_of(parameters)};
  return std::make_unique<FlashSanta>(model, offsets, released);
}

std::vector<Parameter> flash_parameters() {
  std::vector<Parameter> parameters{
      {"samples", "2048", "rows",
       "S, V rows drawn per query head, with repeats; at least one in every tile"},
      {"implementation", "ours", "ours|published",
       "ours: one launch; published: the two of the released kernels"},
      offsets_parameter(/*per_tile=*/true),
      {"mode", "paper", "paper|released",
       "paper: S dealt out evenly (unbiased); released: max(1, S / tiles) in each, the stash "
       "rounded to bfloat16, offsets always per tile"},
      {"tile", "0", "tokens", "tile that draws by itself; 0 = 32, 64 or 256 by prompt length"}};
  for (Parameter& parameter : scoring_parameters()) parameters.push_back(std::move(parameter));
  return parameters;
}

KVSIM_REGISTER_METHOD(
    "santa-flash",
    MethodInfo{.summary = "as many samples in every tile, weighed by the tile's mass afterwards",
               .source = std::string(kSantaPaper) + " §3.3; SANTA repository 2e5f861 (released)",
               .parameters = flash_parameters(),
               .make = make_flash});

}  // namespace
}  // namespace kvsim
