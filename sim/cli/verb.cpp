#include "sim/cli/verb.h"

namespace kvsim {

Registry<Verb>& verb_registry() {
  static Registry<Verb> registry("verb");
  return registry;
}

}  // namespace kvsim
