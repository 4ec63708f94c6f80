// Prints a digest of scores, masses, selections and outputs. Built once per x86-64 level; the test
// compares what the programs print, so nothing here may depend on the vector width.

#include <cstdio>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/santa/distribution.h"
#include "kernels/santapp/parents.h"
#include "kernels/santapp/teams.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

/// FNV-1a.
class Digest {
 public:
  template <typename T>
  void add(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (std::size_t i = 0; i < values.size() * sizeof(T); ++i) {
      state_ = (state_ ^ bytes[i]) * 0x100000001b3ull;
    }
  }
  unsigned long long value() const { return state_; }

 private:
  unsigned long long state_ = 0xcbf29ce484222325ull;
};

void print_digests(const RandomStep& step) {
  const Scores scores = exact_scores(step.view);
  Digest score_digest;
  score_digest.add(scores.values);
  std::printf("scores %016llx\n", score_digest.value());
  for (const char* spec :
       {"dense", "topk", "santa-iid", "santa-strat", "santa-sys", "santa-prop",
        "santa-prop:mode=unbiased", "santa-prop:mode=released", "bernoulli-qk",
        "bernoulli-qk:query=mean,drawn=iid", "santa-sys:scores=bernoulli", "eta:thresholds=union",
        "eta:thresholds=union,block=8,spread=flat,gate=additive", "quest:tokens=64",
        "quest:page=8,tokens=100,mode=evaluation", "santapp:samples=32",
        "santapp:grouping=contiguous,guided=4,routing=mean"}) {
    const NamedMethod named = make_method(spec);
    const Selection selection = select_with(*named.method, step.view);
    Digest rows;
    for (const HeadSelection& head : selection.heads) {
      rows.add(list_rows(head.v_rows));
      rows.add(head.weights);
    }
    Digest output;
    output.add(named.method->attend(step.view, selection));
    std::printf("%s %016llx %016llx\n", spec, rows.value(), output.value());
  }
}

void print_teams(const RandomStep& step) {
  using santapp::Grouping;
  const CacheView prompt = as_prompt(step.view, step.view.rows());
  for (const Grouping grouping : {Grouping::kKeys, Grouping::kProbes}) {
    const santapp::Partition parents = santapp::make_parents(prompt, grouping, 16);
    const santapp::Teams teams = santapp::make_teams(prompt.k, parents, 4);
    Digest digest;
    digest.add(teams.leaders);
    digest.add(teams.partition.starts);
    digest.add(teams.partition.members);
    std::printf("teams %016llx\n", digest.value());
  }
}

}  // namespace
}  // namespace kvsim::testing

int main() {
  using kvsim::testing::RandomStep;
  for (const int dim : {64, 80, 128}) {
    for (const long rows : {1L, 31L, 257L, 3000L}) {
      kvsim::testing::print_digests(
          RandomStep({.rows = rows, .group = 3, .head_dim = dim, .peak = 2, .seed = 12}));
    }
    kvsim::testing::print_teams(RandomStep({.rows = 257, .group = 3, .head_dim = dim}));
  }
}
