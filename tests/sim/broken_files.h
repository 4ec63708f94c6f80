#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/small_trace.h"

namespace kvsim::testing {

/// Ways to break a good HDF5 file, through the HDF5 library alone. Each throws if it cannot.
void set_attribute(const std::string& file, const std::string& object, const std::string& name,
                   std::int64_t value);
void set_attribute(const std::string& file, const std::string& object, const std::string& name,
                   const std::string& value);
void delete_attribute(const std::string& file, const std::string& object, const std::string& name);
void delete_object(const std::string& file, const std::string& object);
/// Replaces a dataset by zeros (float32, or int16 where `integers`) of another shape.
void replace_dataset(const std::string& file, const std::string& object,
                     const std::vector<std::int64_t>& shape, bool integers = false);
/// Puts 16 bits into element `index` of a dataset of 16-bit floats.
void poke(const std::string& file, const std::string& object, std::size_t index,
          std::uint16_t bits);

/// Fills `folder` with good.h5 (four heads on two KV heads, layers 1 and 3) and with one broken
/// copy for every way a file can be wrong; see the .cpp for their names.
void write_broken_files(const TemporaryFolder& folder);

}  // namespace kvsim::testing
