// santa-prop: samples are dealt out to tiles by their mass, then drawn systematically inside each
// tile (SANTA §3.2).

#include <algorithm>

#include "kernels/santa/budgets.h"
#include "kernels/santa/released.h"
#include "kernels/santa/rule.h"
#include "kernels/santa/samplers.h"
#include "kernels/santa/santa.h"

namespace kvsim {
namespace {

enum class Mode { kPaper, kReleased, kUnbiased };

struct PropOptions {
  std::uint32_t samples = 128;
  int tile = 0;  // 0 = by the prompt's length
  Mode mode = Mode::kPaper;
  Offsets offsets = Offsets::kPerHead;
  SantaCostModel::Launches launches = SantaCostModel::Launches::kOurs;
  KeyScoring scoring = {};
};

PropOptions parse_options(const Parameters& parameters) {
  const std::string& mode = parameters.choice("mode");
  return {.samples = static_cast<std::uint32_t>(parameters.integer("samples", 1, kMaxSamples)),
          .tile = static_cast<int>(parameters.integer("tile", 0, 256)),
          .mode = mode == "paper" ? Mode::kPaper
                                  : (mode == "released" ? Mode::kReleased : Mode::kUnbiased),
          .offsets = offsets_of(parameters),
          .launches = launches_of(parameters),
          .scoring = scoring_of(parameters)};
}

SantaCostModel cost_of(const PropOptions& options) {
  const bool per_tile = options.offsets == Offsets::kPerTile || options.mode == Mode::kReleased;
  return {.samples = options.samples,
          .tile = options.tile,
          .random_words_per_head = per_tile ? 0.0 : 1.0,
          .random_words_per_tile = per_tile ? 1.0 : 0.0,
          .shared_random_words = options.offsets == Offsets::kShared,
          .budgets = options.mode == Mode::kUnbiased ? SantaCostModel::Budgets::kSystematic
                                                     : SantaCostModel::Budgets::kLargestRemainder,
          .launches = options.launches,
          .scoring = options.scoring};
}

class PropSanta : public WholeHeadSanta {
 public:
  explicit PropSanta(const PropOptions& options)
      : WholeHeadSanta(cost_of(options), options.offsets), options_(options) {}

 protected:
  Draws draw(const StepView& view, std::span<const float> scores, int g) const override {
    const int tile = options_.tile > 0 ? options_.tile : budget_tile(view.prompt_tokens);
    const HeadDistribution head(scores, tile);
    Draws draws;
    draws.mass_of_rows = mass_of_rows(view, head, g);
    if (options_.mode == Mode::kReleased) {
      const std::uint32_t query_head = view.random.head + static_cast<std::uint32_t>(g);
      ReleasedSelection released = released_prop(scores, tile, samples(), query_head);
      draws.rows = std::move(released.rows);
      draws.drawn_tiles = tiles_with(released.budgets);
      return draws;
    }
    const std::vector<std::uint32_t> budgets =
        options_.mode == Mode::kPaper
            ? largest_remainder_budgets(head, samples())
            : systematic_budgets(head, samples(),
                                 random_of(view, g, Purpose::kBudgetOffset).threshold24(0));
    draws.rows = rows_of_budgets(head, budgets, tile_offsets(view, g, head.tiles()));
    draws.drawn_tiles = tiles_with(budgets);
    return draws;
  }

 private:
  PropOptions options_;
};

std::vector<Parameter> prop_parameters() {
  std::vector<Parameter> parameters = santa_parameters(true);
  parameters.push_back({"mode", "paper", "paper|released|unbiased",
                        "paper: largest remainder (biased); released: the code's rule with its "
                        "quirks, offsets always per tile; unbiased: systematic budgets"});
  parameters.push_back({"tile", "0", "tokens", "budget tile; 0 = 32, 64 or 256 by prompt length"});
  return parameters;
}

KVSIM_REGISTER_METHOD(
    "santa-prop",
    MethodInfo{
        .summary = "S samples dealt out to tiles by mass, drawn systematically in each",
        .source = std::string(kSantaPaper) + " §3.2; SANTA repository 2e5f861 (released)",
        .parameters = prop_parameters(),
        .make = [](const Parameters& p) { return std::make_unique<PropSanta>(parse_options(p)); }});

}  // namespace
}  // namespace kvsim
