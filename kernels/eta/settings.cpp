#include "kernels/eta/settings.h"

#include <bit>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace kvsim::eta {
namespace {

/// Which of a choice's words was given.
template <typename T>
T word(const Parameters& p, const std::string& key,
       std::initializer_list<std::pair<std::string_view, T>> words) {
  const std::string& given = p.choice(key);
  for (const auto& [text, value] : words) {
    if (text == given) return value;
  }
  fail<UsageError>("{}: {}={}", p.method(), key, given);
}

}  // namespace

Settings::Settings(const Parameters& p)
    : block(static_cast<int>(p.integer("block", 1, 128))),
      rule{.pinned = static_cast<int>(p.integer("pinned", 0, 1 << 20)),
           .chunk = p.integer("chunk", 1, 1 << 20),
           .rescue = p.choice("rescue") == "on"},
      shift(static_cast<float>(p.real("shift", -1000, 1000))),
      z(static_cast<float>(p.real("z", 0, 1000))),
      spread(p.choice("spread") == "flat" ? Spread::kFlat : Spread::kEnvelope),
      gate(word<Gate>(p, "gate",
                      {{"multiplicative", Gate::kMultiplicative},
                       {"additive", Gate::kAdditive},
                       {"none", Gate::kNone}})),
      source(word<Source>(p, "thresholds",
                          {{"auto", Source::kAuto},
                           {"learned", Source::kLearned},
                           {"calibrated", Source::kCalibrated},
                           {"union", Source::kUnion}})),
      density(p.real("density", 1e-4, 1)),
      published(p.choice("implementation") == "published") {
  if (!std::has_single_bit(static_cast<unsigned>(block))) {
    fail<UsageError>("{}: block={}, expected a power of two from 1 to 128", p.method(), block);
  }
}

}  // namespace kvsim::eta
