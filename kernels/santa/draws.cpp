// santa-iid, santa-strat, santa-sys: rows drawn from the head's whole distribution (SANTA §2,
// §2.1).

#include "kernels/santa/rule.h"
#include "kernels/santa/samplers.h"
#include "kernels/santa/santa.h"

namespace kvsim {
namespace {

using Thresholds = std::vector<std::uint64_t> (*)(const HeadDistribution&, std::uint32_t,
                                                  const RandomStream&);

class DrawnSanta : public WholeHeadSanta {
 public:
  DrawnSanta(const Parameters& parameters, Thresholds thresholds, SantaCostModel cost)
      : WholeHeadSanta(completed(cost, parameters), offsets_of(parameters)),
        thresholds_(thresholds) {}

 protected:
  Draws draw(const StepView& view, std::span<const float> scores, int g) const override {
    const HeadDistribution head(scores, kMassTile);
    Draws draws;
    draws.rows =
        rows_of(head, thresholds_(head, samples(), random_of(view, g, Purpose::kSampleOffset)));
    draws.mass_of_rows = mass_of_rows(view, head, g);
    for (const std::int64_t row : draws.rows) {
      const auto tile = static_cast<std::int32_t>(row / kMassTile);
      if (draws.drawn_tiles.empty() || draws.drawn_tiles.back() != tile) {
        draws.drawn_tiles.push_back(tile);
      }
    }
    return draws;
  }

 private:
  static SantaCostModel completed(SantaCostModel cost, const Parameters& parameters) {
    cost.tile = kMassTile;
    cost.shared_random_words = offsets_of(parameters) == Offsets::kShared;
    cost.launches = launches_of(parameters);
    cost.scoring = scoring_of(parameters);
    return cost;
  }

  Thresholds thresholds_;
};

std::uint32_t samples_of(const Parameters& parameters) {
  return static_cast<std::uint32_t>(parameters.integer("samples", 1, kMaxSamples));
}

/// A sampler that draws a random word for every sample; with `strata`, thresholds step from one to
/// the next.
std::unique_ptr<Method> word_per_sample(const Parameters& parameters, Thresholds thresholds,
                                        bool strata) {
  const std::uint32_t s = samples_of(parameters);
  const SantaCostModel cost{.samples = s,
                            .random_words_per_head = static_cast<double>(s),
                            .threshold_multiplies = static_cast<double>(s),
                            .threshold_adds = strata ? static_cast<double>(s) : 0.0,
                            .independent = !strata};
  return std::make_unique<DrawnSanta>(parameters, thresholds, cost);
}

KVSIM_REGISTER_METHOD("santa-iid",
                      MethodInfo{
                          .summary = "S V rows drawn independently from the softmax (unbiased)",
                          .source = std::string(kSantaPaper) + " §2",
                          .parameters = santa_parameters(false),
                          .make = [](const Parameters& p) {
                            return word_per_sample(p, iid_thresholds, false);
                          }});

KVSIM_REGISTER_METHOD("santa-strat",
                      MethodInfo{
                          .summary = "one V row in each of S strata of equal mass (unbiased)",
                          .source = std::string(kSantaPaper) + " §2.1",
                          .parameters = santa_parameters(false),
                          .make = [](const Parameters& p) {
                            return word_per_sample(p, stratified_thresholds, true);
                          }});

KVSIM_REGISTER_METHOD(
    "santa-sys",
    MethodInfo{.summary = "S strata of equal mass, one offset per query head for all (unbiased)",
               .source = std::string(kSantaPaper) + " §2.1",
               .parameters = santa_parameters(false),
               .make = [](const Parameters& p) {
                 const std::uint32_t s = samples_of(p);
                 const SantaCostModel cost{.samples = s,
                                           .random_words_per_head = 1,
                                           .threshold_multiplies = 1,
                                           .threshold_adds = static_cast<double>(s)};
                 return std::make_unique<DrawnSanta>(p, systematic_thresholds, cost);
               }});

}  // namespace
}  // namespace kvsim
