#pragma once

#include <functional>
#include <string>

#include "core/registry.h"
#include "sim/cli/command_line.h"
#include "sim/json.h"

namespace kvsim {

/// A kind of thing that `kvsim list` shows: its items as JSON, and these as text. Folders to the
/// right of this one register theirs (plots).
struct ListKind {
  std::function<Json(const CommandLine& line)> items;
  std::function<std::string(const Json& items)> text;
};

Registry<ListKind>& list_kind_registry();

/// One line for each item with a `name` and a `title`.
std::string titles_text(const Json& items);

}  // namespace kvsim

/// Registers a kind: KVSIM_REGISTER_LIST_KIND("plots", {items, titles_text}).
#define KVSIM_REGISTER_LIST_KIND(name, ...)                                  \
  [[maybe_unused]] static const bool kvsim_list_kind_registered_at_startup = \
      ::kvsim::list_kind_registry().add(name, ::kvsim::ListKind __VA_ARGS__)
