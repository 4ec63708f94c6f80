#include "plots/panel.h"

#include <utility>

namespace kvsim {

void Panel::draw(std::vector<std::vector<double>> rows, std::string style) {
  if (!rows.empty()) series_.push_back({std::move(rows), std::move(style)});
}

}  // namespace kvsim
