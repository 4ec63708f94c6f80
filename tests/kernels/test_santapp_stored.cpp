// Teams kept with a trace: used where they are what would be made, refused where they are none.

#include <functional>

#include "core/error.h"
#include "kernels/cache_of_layer.h"
#include "kernels/santapp/stored_teams.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

using santapp::Grouping;
using santapp::make_teams;
using santapp::stored_teams;
using santapp::Teams;
using santapp::teams_of;
using santapp::TeamSettings;

constexpr std::int64_t kKeys = 40;

/// A layer of two KV heads with the same keys, and spans of tokens as the second one's teams.
struct Layer {
  Layer() : step({.rows = kKeys + 2, .group = 2}) {
    layer.info = {
        .layer = 5, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .v_head_dim = 64, .scale = 0.125};
    layer.k = layer.v = {ElementType::kBfloat16, {2, kKeys + 2, 64}, {}};
    for (int head = 0; head < 2; ++head) {
      const auto bytes = std::as_bytes(std::span(step.keys));
      layer.k.data.insert(layer.k.data.end(), bytes.begin(), bytes.end());
    }
    layer.v.data = layer.k.data;
    const CacheView prompt = cache_of_layer(layer, 0, kKeys);
    PreparedState& state = layer.prepared["santapp"];
    state.settings = "parent=16,representatives=4,grouping=keys";
    state.heads = {santapp::arrays_of(make_teams(prompt, settings)),
                   santapp::arrays_of(make_teams(prompt, spans))};
  }
  CacheView prompt(int head = 1) const { return cache_of_layer(layer, head, kKeys); }
  PreparedState::Arrays& arrays() { return layer.prepared["santapp"].heads[1]; }

  const TeamSettings settings{.grouping = Grouping::kKeys, .parent = 16, .representatives = 4};
  const TeamSettings spans{.grouping = Grouping::kContiguous, .parent = 16, .representatives = 4};
  RandomStep step;
  TraceLayer layer;
};

TEST_CASE("santapp: teams of the right settings are taken from the trace, head by head") {
  const Layer l;
  const Teams made = make_teams(l.prompt(), l.settings);
  const Teams kept = make_teams(l.prompt(), l.spans);
  REQUIRE(made != kept);
  CHECK(stored_teams(l.prompt(0), l.settings) == made);
  CHECK(stored_teams(l.prompt(1), l.settings) == kept);
  CHECK(teams_of(l.prompt(1), l.settings) == kept);
}

TEST_CASE("santapp: without stored teams of these settings, teams are made") {
  Layer l;
  for (const TeamSettings& other :
       {l.spans, TeamSettings{.grouping = Grouping::kKeys, .parent = 8, .representatives = 4},
        TeamSettings{.grouping = Grouping::kKeys, .parent = 16, .representatives = 2}}) {
    CHECK_FALSE(stored_teams(l.prompt(), other));
    CHECK(teams_of(l.prompt(), other) == make_teams(l.prompt(), other));
  }
  l.layer.prepared["other"] = l.layer.prepared.extract("santapp").mapped();
  CHECK_FALSE(stored_teams(l.prompt(), l.settings));
  l.layer.prepared.clear();
  CHECK(l.prompt().prepared == nullptr);
  CHECK(teams_of(l.prompt(), l.settings) == make_teams(l.prompt(), l.settings));
}

TEST_CASE("santapp: settings and groupings have words") {
  CHECK(to_string(TeamSettings{}) == "parent=16,representatives=4,grouping=keys");
  for (const char* word : {"keys", "contiguous", "probes"}) {
    CHECK(to_string(santapp::parse_grouping(word).value()) == word);
  }
  CHECK_FALSE(santapp::parse_grouping("key"));
}

TEST_CASE("santapp: stored bytes are those of the arrays") {
  const Layer l;
  const Teams teams = make_teams(l.prompt(), l.settings);
  std::size_t numbers = 0;
  for (const auto& [name, values] : santapp::arrays_of(teams)) numbers += values.size();
  CHECK(numbers > kKeys);
  CHECK(santapp::stored_bytes(teams) == static_cast<std::int64_t>(4 * numbers));
}

TEST_CASE("santapp: stored arrays that are no teams of the prompt's keys are refused") {
  using Arrays = PreparedState::Arrays;
  struct Refusal {
    std::function<void(Arrays&)> damage;
    const char* message;
  };
  const std::vector<Refusal> refusals{
      {[](Arrays& a) { a.erase("leaders"); }, "no dataset 'leaders'"},
      {[](Arrays& a) { a["starts"].clear(); }, "starts holds 0 numbers, expected one more"},
      {[](Arrays& a) { a["starts"].pop_back(); },
       "starts holds 12 numbers, expected one more than leaders: 13"},
      {[](Arrays& a) { a["starts"].front() = 1; },
       "starts runs from 1 to 40, expected 0 to 40 keys of the prompt"},
      {[](Arrays& a) { a["starts"].back() = 41; }, "starts runs from 0 to 41"},
      {[](Arrays& a) { a["starts"][2] = a["starts"][1]; }, "starts[2] is"},
      {[](Arrays& a) { a["starts"][2] = 1 << 30; }, "starts[3] is"},
      {[](Arrays& a) { a["starts"][1] = -1; }, "starts[1] is -1, expected more"},
      {[](Arrays& a) { a["members"].pop_back(); },
       "members holds 39 keys, expected the 40 of the prompt"},
      {[](Arrays& a) { a["members"][3] = 40; }, "members holds 40, expected each key from 0 to 39"},
      {[](Arrays& a) { a["members"][3] = -1; }, "members holds -1, expected"},
      {[](Arrays& a) { a["members"][1] = a["members"][0]; }, "twice, expected each key"},
      {[](Arrays& a) {
         std::int32_t* big = a["members"].data();
         for (std::size_t t = 0;; ++t) {  // a team of several
           big = a["members"].data() + a["starts"][t];
           if (a["starts"][t + 1] - a["starts"][t] > 1) break;
         }
         std::swap(big[0], big[1]);
       },
       "do not ascend"},
      {[](Arrays& a) { std::swap(a["leaders"][0], a["leaders"][1]); }, "leaders[0] is"},
  };
  for (const Refusal& refusal : refusals) {
    INFO(refusal.message);
    Layer l;
    refusal.damage(l.arrays());
    CHECK_THROWS_AS(stored_teams(l.prompt(), l.settings), RuntimeError);
    CHECK_THROWS_WITH(teams_of(l.prompt(), l.settings),
                      ContainsSubstring("state/santapp/1: ") && ContainsSubstring(refusal.message));
    CHECK(stored_teams(l.prompt(0), l.settings).has_value());
  }
  const Layer l;
  CHECK_THROWS_WITH(stored_teams(cache_of_layer(l.layer, 1, kKeys - 1), l.settings),
                    ContainsSubstring("starts runs from 0 to 40, expected 0 to 39 keys"));
}

}  // namespace
}  // namespace kvsim::testing
