#include "kernels/measure/board.h"

#include <dlfcn.h>

#include <array>

namespace kvsim {
namespace {

// nvml.h is not in every CUDA installation, so the few names used are declared here. Every
// function returns 0 on success.
constexpr int kSmClock = 1;
constexpr int kMemoryClock = 2;
constexpr int kGpuTemperature = 0;

template <typename... Arguments>
bool call(void* library, const char* name, Arguments... arguments) {
  if (library == nullptr) return false;
  auto* function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
  return function != nullptr && function(arguments...) == 0;
}

}  // namespace

Board::Board(const std::string& pci_bus_id) : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
  if (!call(library_, "nvmlInit_v2")) return;
  if (!call(library_, "nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.c_str(), &device_)) {
    device_ = nullptr;
  }
}

Board::~Board() {
  if (library_ == nullptr) return;
  call(library_, "nvmlShutdown");
  dlclose(library_);
}

BoardReadings Board::readings() const {
  BoardReadings result;
  if (device_ == nullptr) return result;
  unsigned value = 0;
  if (call(library_, "nvmlDeviceGetClockInfo", device_, kSmClock, &value)) result.sm_mhz = value;
  if (call(library_, "nvmlDeviceGetClockInfo", device_, kMemoryClock, &value)) {
    result.memory_mhz = value;
  }
  if (call(library_, "nvmlDeviceGetTemperature", device_, kGpuTemperature, &value)) {
    result.temperature_c = value;
  }
  if (call(library_, "nvmlDeviceGetPowerUsage", device_, &value)) result.power_w = value * 1e-3;
  return result;
}

std::string Board::driver_version() const {
  std::array<char, 96> text{};
  if (!call(library_, "nvmlSystemGetDriverVersion", text.data(),
            static_cast<unsigned>(text.size()))) {
    return "";
  }
  return text.data();
}

}  // namespace kvsim
