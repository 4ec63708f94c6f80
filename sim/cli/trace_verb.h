#pragma once

#include "sim/cli/verb.h"

namespace kvsim {

/// The verbs of `kvsim trace`, each in a file of its own.
Registry<Verb>& trace_verb_registry();

}  // namespace kvsim

/// Registers one: KVSIM_REGISTER_TRACE_VERB("info", {"what it does", run}).
#define KVSIM_REGISTER_TRACE_VERB(name, ...)                                  \
  [[maybe_unused]] static const bool kvsim_trace_verb_registered_at_startup = \
      ::kvsim::trace_verb_registry().add(name, ::kvsim::Verb __VA_ARGS__)
