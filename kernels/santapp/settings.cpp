#include "kernels/santapp/settings.h"

#include "core/error.h"

namespace kvsim::santapp {
namespace {

Grouping grouping_of(const std::string& word) {
  if (word == "contiguous") return Grouping::kContiguous;
  return word == "probes" ? Grouping::kProbes : Grouping::kKeys;
}

}  // namespace

Settings::Settings(const Parameters& p)
    : samples(p.integer("samples", 1, std::int64_t{1} << 24)),
      parent(static_cast<int>(p.integer("parent", 1, 1 << 16))),
      representatives(static_cast<int>(p.integer("representatives", 1, 1 << 16))),
      grouping(grouping_of(p.choice("grouping"))),
      routes_by_mean(p.choice("routing") == "mean"),
      guided(static_cast<int>(p.integer("guided", 0, 1 << 16))),
      published(p.choice("implementation") == "published") {
  if (parent % representatives != 0) {
    fail<UsageError>("{}: representatives={}, expected a divisor of parent={}", p.method(),
                     representatives, parent);
  }
  const int nominal = guided > 0 ? guided : parent / representatives;
  if (samples % nominal != 0) {
    fail<UsageError>("{}: samples={}, expected a multiple of {}={}", p.method(), samples,
                     guided > 0 ? "guided" : "parent / representatives", nominal);
  }
}

}  // namespace kvsim::santapp
