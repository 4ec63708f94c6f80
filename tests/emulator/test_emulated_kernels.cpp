// Every CUDA kernel on the emulated GPU, by the checks of the tests on a real one.

#include <cstdlib>

#include "tests/catch.h"
#include "tests/emulator/device.h"
#include "tests/kernels/gpu/check_case.cuh"

namespace kvsim {
namespace {

using testing::check_case;

TEST_CASE("one") {
  const char* spec = std::getenv("SPEC");
  CHECK(check_case(spec != nullptr ? spec : "dense", testing::hnd({300}, 8, 2, 128),
                   emulator::Device::instance().limits, 8));
}

}  // namespace
}  // namespace kvsim
