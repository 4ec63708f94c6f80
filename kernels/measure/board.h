#pragma once

#include <string>

#include "kernels/measure/gpu.h"

namespace kvsim {

/// NVML, opened at run time: a machine without it only lacks the readings.
class Board {
 public:
  /// `pci_bus_id` as CUDA prints it, "0000:01:00.0".
  explicit Board(const std::string& pci_bus_id);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  BoardReadings readings() const;
  std::string driver_version() const;  // "" if NVML is absent

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace kvsim
