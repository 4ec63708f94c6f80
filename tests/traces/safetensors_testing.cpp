#include "tests/traces/safetensors_testing.h"

namespace kvsim::testing {
namespace {

std::string dtype_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
      return "F16";
    case ElementType::kBfloat16:
      return "BF16";
    case ElementType::kFloat32:
      break;
  }
  return "F32";
}

}  // namespace

void Safetensors::add(const std::string& name, const std::string& dtype,
                      const std::vector<std::int64_t>& shape, const std::string& bytes) {
  header[name] = {{"dtype", dtype},
                  {"shape", shape},
                  {"data_offsets", {data.size(), data.size() + bytes.size()}}};
  data += bytes;
}

void Safetensors::add(const std::string& name, const HostTensor& tensor) {
  add(name, dtype_of(tensor.type), {tensor.shape.begin(), tensor.shape.end()},
      text_of(tensor.data));
}

void Safetensors::add_integers(const std::string& name, const std::vector<std::int32_t>& values) {
  add(name, "I32", {static_cast<std::int64_t>(values.size())},
      {reinterpret_cast<const char*>(values.data()), values.size() * 4});
}

std::string Safetensors::with_header(const std::string& text) const {
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace kvsim::testing
