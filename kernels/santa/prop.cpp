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
  bool offset_per_tile = false;
  SantaCostModel::Launches launches = SantaCostModel::Launches::kOurs;
  KeyScoring scoring = {};
};

PropOptions parse_options(const Parameters& parameters) {
  const std::string& mode = parameters.choice("mode");
  return {.samples = static_cast<std::uint32_t>(parameters.integer("samples", 1, kMaxSamples)),
          .tile = static_cast<int>(parameters.integer("tile", 0, 256)),
          .mode = mode == "paper" ? Mode::kPaper
                                  : (mode == "released" ? Mode::kReleased : Mode::kUnbiased),
          .offset_per_tile = parameters.choice("offsets") == "tile",
          .launches = launches_of(parameters),
          .scoring = scoring_of(parameters)};
}

SantaCostModel cost_of(const PropOptions& options) {
  const bool per_tile = options.offset_per_tile || options.mode == Mode::kReleased;
  return {.samples = options.samples,
          .tile = options.tile,
          .random_words_per_head = per_tile ? 0.0 : 1.0,
          .random_words_per_tile = per_tile ? 1.0 : 0.0,
          .budgets = options.mode == Mode::kUnbiased ? SantaCostModel::Budgets::kSystematic
                                                     : SantaCostModel::Budgets::kLargestRemainder,
          .launches = options.launches};
}

std::vector<std::int32_t> tiles_with(const std::vector<std::uint32_t>& budgets) {
  std::vector<std::int32_t> tiles;
  for (std::size_t t = 0; t < budgets.size(); ++t) {
    if (budgets[t] > 0) tiles.push_back(static_cast<std::int32_t>(t));
  }
  return tiles;
}

class PropSanta : public SantaMethod {
 public:
  explicit PropSanta(const PropOptions& options)
      : SantaMethod(cost_of(options), options.scoring), options_(options) {}

 protected:
  Draws draw(const StepView& view, std::span<const float> scores, int g) const override {
    const int tile = options_.tile > 0 ? options_.tile : budget_tile(view.prompt_tokens);
    const HeadDistribution head(scores, tile);
    Draws draws;
    draws.mass_of_rows = mass_of_rows(view, head, g);
    if (options_.mode == Mode::kReleased) {
      const std::uint32_t query_head = view.random.head + static_cast<std::uint32_t>(g);
      const ReleasedSelection released = released_selection(scores, tile, samples(), query_head);
      for (std::size_t i = 0; i < released.rows.size(); ++i) {
        draws.rows.insert(draws.rows.end(), static_cast<std::size_t>(released.counts[i]),
                          released.rows[i]);
      }
      draws.drawn_tiles = tiles_with(released.budgets);
      return draws;
    }
    const std::vector<std::uint32_t> budgets =
        options_.mode == Mode::kPaper
            ? largest_remainder_budgets(head, samples())
            : systematic_budgets(head, samples(),
                                 view.random_of(g, Purpose::kBudgetOffset).threshold24(0));
    draws.rows = rows_of_budgets(head, budgets, offsets(view, g, head.tiles()));
    draws.drawn_tiles = tiles_with(budgets);
    return draws;
  }

 private:
  std::vector<std::uint32_t> offsets(const StepView& view, int g, int tiles) const {
    const RandomStream random = view.random_of(g, Purpose::kSampleOffset);
    std::vector<std::uint32_t> offsets(options_.offset_per_tile ? static_cast<std::size_t>(tiles)
                                                                : 1);
    for (std::uint32_t t = 0; t < offsets.size(); ++t) offsets[t] = random.threshold24(t);
    return offsets;
  }

  PropOptions options_;
};

std::vector<Parameter> prop_parameters() {
  std::vector<Parameter> parameters = santa_parameters();
  parameters.push_back({"mode", "paper", "paper|released|unbiased",
                        "paper: largest remainder (biased); released: the code's rule with its "
                        "quirks; unbiased: systematic budgets"});
  parameters.push_back({"tile", "0", "tokens", "budget tile; 0 = 32, 64 or 256 by prompt length"});
  parameters.push_back({"offsets", "head", "head|tile",
                        "one random offset per query head, or per head and tile (released: always "
                        "tile, from a fixed seed)"});
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
