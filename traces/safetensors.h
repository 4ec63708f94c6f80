#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace kvsim {

/// A tensor of a safetensors file: contiguous, row-major, little-endian.
struct SafetensorsEntry {
  std::string dtype;  // as in the file: F32, BF16, I64, …
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // bytes, from the start of the file
  std::int64_t end = 0;
};

/// Reads a safetensors file: 8 bytes with the length of the header, the header in JSON, the data.
/// Opening checks the header against the file: bad JSON, wrong or overlapping offsets and truncated
/// data are a RuntimeError that names file and tensor. Data is read on demand.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, SafetensorsEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }

  /// Throws RuntimeError that lists what there is when the tensor is missing.
  const SafetensorsEntry& at(const std::string& name) const;
  /// As `at`, and with this shape (-1: any).
  const SafetensorsEntry& at(const std::string& name, const std::vector<std::int64_t>& shape) const;
  /// The element type of a float tensor; RuntimeError for any dtype but F32, F16 and BF16.
  ElementType element_type(const std::string& name) const;

  /// Bytes [offset, offset + out.size()) of a tensor.
  void read(const SafetensorsEntry& entry, std::int64_t offset, std::span<std::byte> out) const;
  /// A float tensor of at most three dimensions, whole.
  HostTensor read_tensor(const std::string& name) const;
  /// A tensor of I32 or I64, whole.
  std::vector<std::int64_t> read_integers(const std::string& name) const;

 private:
  void read_bytes(std::int64_t begin, std::span<std::byte> out) const;

  std::string path_;
  mutable std::ifstream stream_;
  std::int64_t bytes_ = 0;
  std::map<std::string, SafetensorsEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace kvsim
