#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "kernels/santapp/parents.h"
#include "kernels/santapp/teams.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

using santapp::Grouping;
using santapp::make_parents;
using santapp::make_teams;
using santapp::Partition;
using santapp::Teams;

RowsView view_of(const std::vector<float>& values, int dim) {
  return {reinterpret_cast<const std::byte*>(values.data()), ElementType::kFloat32,
          static_cast<std::int64_t>(values.size()) / dim, dim, dim};
}

std::vector<double> as_doubles(const RowsView& keys) {
  std::vector<float> values(static_cast<std::size_t>(keys.rows * keys.dim));
  load_rows(keys, 0, keys.rows, keys.dim, values.data());
  return {values.begin(), values.end()};
}

/// Every key in exactly one part, ascending in it, and no part empty.
void check_partition(const Partition& partition, std::int64_t keys) {
  std::vector<std::int32_t> all = partition.members;
  std::ranges::sort(all);
  std::vector<std::int32_t> expected(static_cast<std::size_t>(keys));
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(all == expected);
  REQUIRE(partition.starts.front() == 0);
  REQUIRE(partition.starts.back() == keys);
  for (std::int32_t p = 0; p < partition.parts(); ++p) {
    CHECK(partition.size(p) > 0);
    CHECK(std::ranges::is_sorted(partition.part(p)));
  }
}

void check_teams(const Teams& teams, std::int64_t keys) {
  check_partition(teams.partition, keys);
  REQUIRE(teams.leaders.size() == static_cast<std::size_t>(teams.partition.parts()));
  for (std::int32_t t = 0; t < teams.partition.parts(); ++t) {
    const std::span<const std::int32_t> members = teams.partition.part(t);
    CHECK(std::ranges::count(members, teams.leaders[static_cast<std::size_t>(t)]) == 1);
  }
}

/// Section 2.2 in float64, parent by parent, key by key.
class NaiveTeams {
 public:
  explicit NaiveTeams(const RowsView& keys)
      : values_(as_doubles(keys)), dim_(static_cast<std::size_t>(keys.dim)) {}

  /// The leaders of a parent, and which of them each of its keys joins.
  struct Parent {
    std::vector<std::int32_t> leaders;
    std::vector<std::size_t> joined;
  };
  Parent split(std::span<const std::int32_t> members, int most) const {
    Parent parent;
    std::vector<double> mean(dim_, 0.0);
    for (std::size_t d = 0; d < dim_; ++d) {
      for (const std::int32_t key : members) mean[d] += at(key, d);
      mean[d] /= static_cast<double>(members.size());
    }
    parent.leaders.push_back(*std::ranges::min_element(
        members, {}, [&](std::int32_t key) { return distance(key, mean); }));
    while (parent.leaders.size() < std::min(members.size(), static_cast<std::size_t>(most))) {
      std::vector<std::int32_t> others;
      std::ranges::copy_if(members, std::back_inserter(others), [&](std::int32_t key) {
        return std::ranges::count(parent.leaders, key) == 0;
      });
      parent.leaders.push_back(*std::ranges::max_element(
          others, {}, [&](std::int32_t key) { return nearest(key, parent.leaders).second; }));
    }
    for (const std::int32_t key : members) {
      const auto own = std::ranges::find(parent.leaders, key);
      parent.joined.push_back(own != parent.leaders.end()
                                  ? static_cast<std::size_t>(own - parent.leaders.begin())
                                  : nearest(key, parent.leaders).first);
    }
    return parent;
  }

 private:
  double at(std::int32_t key, std::size_t d) const {
    return values_[static_cast<std::size_t>(key) * dim_ + d];
  }
  double distance(std::int32_t key, const std::vector<double>& point) const {
    double sum = 0;
    for (std::size_t d = 0; d < dim_; ++d) sum += (at(key, d) - point[d]) * (at(key, d) - point[d]);
    return sum;
  }
  std::pair<std::size_t, double> nearest(std::int32_t key,
                                         const std::vector<std::int32_t>& leaders) const {
    std::pair<std::size_t, double> best{0, std::numeric_limits<double>::infinity()};
    for (std::size_t i = 0; i < leaders.size(); ++i) {
      std::vector<double> leader;
      for (std::size_t d = 0; d < dim_; ++d) leader.push_back(at(leaders[i], d));
      const double far = distance(key, leader);
      if (far < best.second) best = {i, far};
    }
    return best;
  }

  std::vector<double> values_;
  std::size_t dim_;
};

void compare_with_naive(const RowsView& keys, const Partition& parents, int representatives) {
  const Teams teams = make_teams(keys, parents, representatives);
  check_teams(teams, keys.rows);
  const NaiveTeams naive(keys);
  std::int32_t team = 0;  // teams follow their parents
  for (std::int32_t p = 0; p < parents.parts(); ++p) {
    const std::span<const std::int32_t> members = parents.part(p);
    const NaiveTeams::Parent expected = naive.split(members, representatives);
    for (std::size_t i = 0; i < expected.leaders.size(); ++i, ++team) {
      CHECK(teams.leaders[static_cast<std::size_t>(team)] == expected.leaders[i]);
      std::vector<std::int32_t> joined;
      for (std::size_t m = 0; m < members.size(); ++m) {
        if (expected.joined[m] == i) joined.push_back(members[m]);
      }
      CHECK(std::ranges::equal(teams.partition.part(team), joined));
    }
  }
  CHECK(team == teams.partition.parts());
}

CacheView prompt_of(const RowsView& keys) { return {.k = keys, .v = keys}; }

TEST_CASE("santapp: a partition of labels leaves out those that nobody has") {
  const std::vector<std::int32_t> labels{4, 1, 4, 1, 1, 0};
  const Partition partition = Partition::of_labels(labels, 6);
  CHECK(partition.members == std::vector<std::int32_t>{5, 1, 3, 4, 0, 2});
  CHECK(partition.starts == std::vector<std::int32_t>{0, 1, 4, 6});
  CHECK(partition.parts() == 3);
  CHECK(partition.size(1) == 3);
}

TEST_CASE("santapp: spans of tokens keep a short last one") {
  const RandomStep step({.rows = 37});
  const Partition parents = make_parents(prompt_of(step.view.k), Grouping::kContiguous, 16);
  check_partition(parents, 37);
  CHECK(parents.starts == std::vector<std::int32_t>{0, 16, 32, 37});
  CHECK(std::ranges::is_sorted(parents.members));
  for (const std::int64_t rows : {1, 15, 16}) {
    const Partition one =
        make_parents(prompt_of(step.view.k.slice(0, rows)), Grouping::kContiguous, 16);
    check_partition(one, rows);
    CHECK(one.parts() == 1);
  }
}

TEST_CASE("santapp: leaders and teams as told key by key, ties and all") {
  // Whole numbers in parents of 16: means and distances are exact, and many are equal.
  std::mt19937_64 engine(5);
  for (const int spread : {1, 2, 9}) {
    std::vector<float> values;
    for (int i = 0; i < 320 * 6; ++i) {
      values.push_back(static_cast<float>(engine() % static_cast<unsigned>(spread + 1)));
    }
    const RowsView keys = view_of(values, 6);
    const Partition parents = make_parents(prompt_of(keys), Grouping::kContiguous, 16);
    for (const int representatives : {1, 2, 4, 16, 40}) {
      INFO("numbers to " << spread << ", " << representatives << " representatives");
      compare_with_naive(keys, parents, representatives);
    }
  }
}

TEST_CASE("santapp: leaders and teams of parents of any size") {
  const RandomStep step({.rows = 501, .head_dim = 80, .seed = 3});
  std::vector<std::int32_t> labels;
  for (int i = 0; i < 501; ++i) labels.push_back(i * i % 23 * 3);
  const Partition parents = Partition::of_labels(labels, 70);
  for (const int representatives : {1, 4, 7}) {
    compare_with_naive(step.view.k, parents, representatives);
  }
}

TEST_CASE("santapp: equal keys still make teams, each led by one of its own") {
  const std::vector<float> values(20 * 8, 0.3f);
  const RowsView keys = view_of(values, 8);
  const Partition parents = make_parents(prompt_of(keys), Grouping::kContiguous, 16);
  const Teams teams = make_teams(keys, parents, 4);
  check_teams(teams, 20);
  CHECK(teams.leaders == std::vector<std::int32_t>{0, 1, 2, 3, 16, 17, 18, 19});
  CHECK(teams.partition.starts == std::vector<std::int32_t>{0, 13, 14, 15, 16, 17, 18, 19, 20});
  CHECK(teams.partition.part(0).back() == 15);
  const Teams clustered = make_teams(keys, make_parents(prompt_of(keys), Grouping::kKeys, 16), 4);
  check_teams(clustered, 20);
  CHECK(clustered.partition.parts() == 4);
}

TEST_CASE("santapp: short prompts") {
  const RandomStep step({.rows = 40, .seed = 2});
  for (const Grouping grouping : {Grouping::kKeys, Grouping::kContiguous}) {
    for (const std::int64_t rows : {1, 2, 3, 15, 16, 17, 31, 33}) {
      INFO(rows << " keys");
      const RowsView keys = step.view.k.slice(0, rows);
      const Partition parents = make_parents(prompt_of(keys), grouping, 16);
      check_partition(parents, rows);
      CHECK(parents.parts() <=
            (grouping == Grouping::kKeys ? santapp::cluster_count(rows, 16) : (rows + 15) / 16));
      compare_with_naive(keys, parents, 4);
      if (rows == 1) CHECK(parents.parts() == 1);
    }
  }
  CHECK(santapp::cluster_count(1, 16) == 1);
  CHECK(santapp::cluster_count(2, 16) == 2);
  CHECK(santapp::cluster_count(47, 16) == 2);
  CHECK(santapp::cluster_count(48, 16) == 3);
  CHECK(santapp::cluster_count(32768, 16) == 2048);
}

/// True if keys lie together exactly where `group` says so.
bool groups_as(const Partition& partition, const std::vector<int>& group) {
  std::vector<int> of_part;
  for (std::int32_t p = 0; p < partition.parts(); ++p) {
    const int first = group[static_cast<std::size_t>(partition.part(p).front())];
    of_part.push_back(first);
    for (const std::int32_t key : partition.part(p)) {
      if (group[static_cast<std::size_t>(key)] != first) return false;
    }
  }
  std::ranges::sort(of_part);
  return std::ranges::adjacent_find(of_part) == of_part.end();
}

TEST_CASE("santapp: k-means brings keys together that lie together, wherever their tokens are") {
  std::mt19937_64 engine(11);
  std::normal_distribution<float> normal;
  std::vector<float> centres(8 * 20);
  for (float& x : centres) x = 10 * normal(engine);
  std::vector<float> values;
  std::vector<int> group;
  for (int i = 0; i < 128; ++i) {
    group.push_back(i % 8);
    for (int d = 0; d < 20; ++d) {
      values.push_back(centres[static_cast<std::size_t>(i % 8 * 20 + d)] + 0.1f * normal(engine));
    }
  }
  const Partition parents = make_parents(prompt_of(view_of(values, 20)), Grouping::kKeys, 16);
  check_partition(parents, 128);
  CHECK(groups_as(parents, group));
}

/// Keys of 4 kinds, told apart by the signs of their first two numbers, the one that a head's
/// probes look at and the one that the other's do; the rest of a key is far larger and means
/// nothing.
struct Fingerprinted {
  static constexpr int kDim = 8;

  Fingerprinted() {
    std::mt19937_64 engine(13);
    std::normal_distribution<float> normal;
    for (int i = 0; i < 64; ++i) {
      const int kind = static_cast<int>(engine() % 4);
      kinds.push_back(kind);
      keys.push_back(kind % 2 == 0 ? 5.0f : -5.0f);
      keys.push_back(kind / 2 == 0 ? 5.0f : -5.0f);
      for (int d = 2; d < kDim; ++d) keys.push_back(100 * normal(engine));
    }
    for (const std::size_t head : {0u, 1u}) {
      probes[head].assign(kProbes * kDim, 0.0f);
      for (std::size_t i = 0; i < kProbes; ++i) {
        // All but the last 64 look at what means nothing.
        probes[head][i * kDim + (i + 64 < kProbes ? 2 : head)] = 1 + normal(engine) * 0.1f;
      }
    }
    prompt = prompt_of(view_of(keys, kDim));
    for (const std::vector<float>& each : probes) prompt.probes.push_back(view_of(each, kDim));
  }

  static constexpr std::size_t kProbes = 70;
  std::vector<float> keys;
  std::vector<int> kinds;
  std::vector<float> probes[2];
  CacheView prompt;
};

TEST_CASE("santapp: fingerprints are what the last probes of all heads score") {
  const Fingerprinted f;
  const Partition by_probes = make_parents(f.prompt, Grouping::kProbes, 16);
  check_partition(by_probes, 64);
  CHECK(groups_as(by_probes, f.kinds));
  CHECK_FALSE(groups_as(make_parents(f.prompt, Grouping::kKeys, 16), f.kinds));
  CacheView one_head = f.prompt;
  one_head.probes.pop_back();
  std::vector<int> by_first_number;
  for (const int kind : f.kinds) by_first_number.push_back(kind % 2);
  CHECK(groups_as(make_parents(one_head, Grouping::kProbes, 32), by_first_number));
}

TEST_CASE("santapp: fingerprints are logits, capped where the model caps them") {
  std::vector<float> keys;
  for (int i = 0; i < 10; ++i) keys.insert(keys.end(), {-50, 50, 90});
  const std::vector<float> query{1};
  CacheView prompt = prompt_of(view_of(keys, 1));
  prompt.probes.push_back(view_of(query, 1));
  const auto sizes = [&] {
    const Partition parents = make_parents(prompt, Grouping::kProbes, 10);
    check_partition(parents, 30);
    std::vector<std::int32_t> result;
    for (std::int32_t p = 0; p < parents.parts(); ++p) result.push_back(parents.size(p));
    std::ranges::sort(result);
    return result;
  };
  CHECK(sizes() == std::vector<std::int32_t>{10, 10, 10});
  prompt.logit_cap = 1;  // 50 and 90 are one
  CHECK(sizes() == std::vector<std::int32_t>{10, 20});
  prompt.scale = 0.001f;
  CHECK(sizes() == std::vector<std::int32_t>{10, 10, 10});
}

TEST_CASE("santapp: fingerprints need probes") {
  const RandomStep step({.rows = 40});
  CHECK_THROWS_AS(make_parents(prompt_of(step.view.k), Grouping::kProbes, 16), RuntimeError);
  CHECK_THROWS_WITH(make_parents(prompt_of(step.view.k), Grouping::kProbes, 16),
                    ContainsSubstring("no probe queries") && ContainsSubstring("grouping=keys"));
}

}  // namespace
}  // namespace kvsim::testing
