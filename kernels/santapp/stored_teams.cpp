#include "kernels/santapp/stored_teams.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace kvsim::santapp {
namespace {

/// Arrays of a file, which may hold anything.
class StoredTeams {
 public:
  StoredTeams(const PreparedState::Arrays& arrays, int kv_head, std::int64_t keys)
      : arrays_(arrays), kv_head_(kv_head), keys_(keys) {}

  Teams checked() const {
    Teams teams{{array("members"), array("starts")}, array("leaders")};
    check_starts(teams.partition.starts, teams.leaders.size());
    check_members(teams.partition);
    for (std::size_t t = 0; t < teams.leaders.size(); ++t) {
      const auto members = teams.partition.part(static_cast<std::int32_t>(t));
      if (!std::ranges::binary_search(members, teams.leaders[t])) {
        refuse(fmt::format("leaders[{}] is {}, expected a key of its team", t, teams.leaders[t]));
      }
    }
    return teams;
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    fail<RuntimeError>("state/{}/{}: {}", kStateName, kv_head_, problem);
  }

  const std::vector<std::int32_t>& array(const char* name) const {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) refuse(fmt::format("no dataset '{}'", name));
    return found->second;
  }

  /// Of teams that none is empty, and all keys together.
  void check_starts(const std::vector<std::int32_t>& starts, std::size_t teams) const {
    if (starts.size() != teams + 1) {
      refuse(fmt::format("starts holds {} numbers, expected one more than leaders: {}",
                         starts.size(), teams + 1));
    }
    if (starts.front() != 0 || starts.back() != keys_) {
      refuse(fmt::format("starts runs from {} to {}, expected 0 to {} keys of the prompt",
                         starts.front(), starts.back(), keys_));
    }
    const auto falling = std::ranges::adjacent_find(starts, std::greater_equal<>());
    if (falling != starts.end()) {
      refuse(fmt::format("starts[{}] is {}, expected more than the one before",
                         falling - starts.begin() + 1, falling[1]));
    }
  }

  void check_members(const Partition& partition) const {
    if (static_cast<std::int64_t>(partition.members.size()) != keys_) {
      refuse(fmt::format("members holds {} keys, expected the {} of the prompt",
                         partition.members.size(), keys_));
    }
    std::vector<bool> seen(partition.members.size(), false);
    for (const std::int32_t key : partition.members) {
      const bool known = key >= 0 && key < keys_;
      if (!known || seen[static_cast<std::size_t>(key)]) {
        refuse(fmt::format("members holds {}{}, expected each key from 0 to {} once", key,
                           known ? " twice" : "", keys_ - 1));
      }
      seen[static_cast<std::size_t>(key)] = true;
    }
    for (std::int32_t part = 0; part < partition.parts(); ++part) {
      if (!std::ranges::is_sorted(partition.part(part))) {
        refuse(fmt::format("the members of team {} do not ascend", part));
      }
    }
  }

  const PreparedState::Arrays& arrays_;
  int kv_head_;
  std::int64_t keys_;
};

}  // namespace

std::string to_string(const TeamSettings& settings) {
  return fmt::format("parent={},representatives={},grouping={}", settings.parent,
                     settings.representatives, to_string(settings.grouping));
}

std::optional<Teams> stored_teams(const CacheView& prompt, const TeamSettings& settings) {
  if (prompt.prepared == nullptr) return std::nullopt;
  const auto found = prompt.prepared->find(kStateName);
  if (found == prompt.prepared->end()) return std::nullopt;
  const PreparedState& state = found->second;
  if (state.settings != to_string(settings)) return std::nullopt;
  const PreparedState::Arrays& arrays = state.heads.at(static_cast<std::size_t>(prompt.kv_head));
  return StoredTeams(arrays, prompt.kv_head, prompt.k.rows).checked();
}

Teams make_teams(const CacheView& prompt, const TeamSettings& settings) {
  const Partition parents = make_parents(prompt, settings.grouping, settings.parent);
  return make_teams(prompt.k, parents, settings.representatives);
}

Teams teams_of(const CacheView& prompt, const TeamSettings& settings) {
  std::optional<Teams> stored = stored_teams(prompt, settings);
  return stored ? *std::move(stored) : make_teams(prompt, settings);
}

PreparedState::Arrays arrays_of(const Teams& teams) {
  return {{"members", teams.partition.members},
          {"starts", teams.partition.starts},
          {"leaders", teams.leaders}};
}

std::int64_t stored_bytes(const Teams& teams) {
  const std::size_t numbers =
      teams.partition.members.size() + teams.partition.starts.size() + teams.leaders.size();
  return static_cast<std::int64_t>(numbers * sizeof(std::int32_t));
}

}  // namespace kvsim::santapp
