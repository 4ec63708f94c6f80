#include "kernels/device/kernel.h"

namespace kvsim {

Registry<KernelInfo>& kernel_registry() {
  static Registry<KernelInfo> registry("method with a CUDA kernel");
  return registry;
}

}  // namespace kvsim
