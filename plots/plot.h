#pragma once

#include <functional>
#include <string>

#include "core/registry.h"
#include "plots/document.h"
#include "plots/figure.h"

namespace kvsim {

/// A kind of picture, in a file of its own. It draws what the document says and computes nothing
/// but places on paper and unit prefixes. Throws RuntimeError for what the document lacks.
struct Plot {
  std::string summary;
  std::function<Figure(const Document& document)> draw;
};

Registry<Plot>& plot_registry();

}  // namespace kvsim

/// Registers a kind from its own file: KVSIM_REGISTER_PLOT("latency", {"what it shows", draw}).
#define KVSIM_REGISTER_PLOT(name, ...)                                  \
  [[maybe_unused]] static const bool kvsim_plot_registered_at_startup = \
      ::kvsim::plot_registry().add(name, ::kvsim::Plot __VA_ARGS__)
