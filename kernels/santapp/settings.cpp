#include "kernels/santapp/settings.h"

#include "core/error.h"

namespace kvsim::santapp {

Settings::Settings(const Parameters& p)
    : samples(p.integer("samples", 1, std::int64_t{1} << 24)),
      teams{.grouping = parse_grouping(p.choice("grouping")).value(),
            .parent = static_cast<int>(p.integer("parent", 1, 1 << 16)),
            .representatives = static_cast<int>(p.integer("representatives", 1, 1 << 16))},
      routes_by_mean(p.choice("routing") == "mean"),
      guided(static_cast<int>(p.integer("guided", 0, 1 << 16))),
      published(p.choice("implementation") == "published") {
  if (guided > 0) teams.representatives = 1;
  if (teams.parent % teams.representatives != 0) {
    fail<UsageError>("{}: representatives={}, expected a divisor of parent={}", p.method(),
                     teams.representatives, teams.parent);
  }
  if (samples % nominal_keys() != 0) {
    fail<UsageError>("{}: samples={}, expected a multiple of {}={}", p.method(), samples,
                     guided > 0 ? "guided" : "parent / representatives", nominal_keys());
  }
}

}  // namespace kvsim::santapp
