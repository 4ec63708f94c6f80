#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace kvsim::testing {

/// A safetensors file by hand: 8 bytes of length, JSON, data.
struct Safetensors {
  nlohmann::json header = nlohmann::json::object();
  std::string data;

  void add(const std::string& name, const std::string& dtype,
           const std::vector<std::int64_t>& shape, const std::string& bytes);
  void add(const std::string& name, const HostTensor& tensor);
  void add_integers(const std::string& name, const std::vector<std::int32_t>& values);
  std::string bytes() const { return with_header(header.dump()); }
  std::string with_header(const std::string& text) const;
};

std::string text_of(const std::vector<std::byte>& bytes);

}  // namespace kvsim::testing
