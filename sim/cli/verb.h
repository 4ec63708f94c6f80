#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/registry.h"

namespace kvsim {

/// A verb of the command line, `kvsim NAME arguments...`, in a file of its own. `run` gets the
/// words after the name, prints to standard output, and throws UsageError or RuntimeError.
struct Verb {
  std::string summary;
  std::function<void(const std::vector<std::string>& arguments)> run;
};

Registry<Verb>& verb_registry();

}  // namespace kvsim

/// Registers a verb from its own file: KVSIM_REGISTER_VERB("replay", {"what it does", run}).
#define KVSIM_REGISTER_VERB(name, ...)                                  \
  [[maybe_unused]] static const bool kvsim_verb_registered_at_startup = \
      ::kvsim::verb_registry().add(name, ::kvsim::Verb __VA_ARGS__)
