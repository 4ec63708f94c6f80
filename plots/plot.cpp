#include "plots/plot.h"

namespace kvsim {

Registry<Plot>& plot_registry() {
  static Registry<Plot> registry("kind of plot");
  return registry;
}

}  // namespace kvsim
