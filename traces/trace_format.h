#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/hdf5.h"
#include "traces/trace.h"

/// What a trace file holds, shared by its reader, its writer and its check.
namespace kvsim::trace_format {

inline constexpr const char* kFormat = "kvsim-trace";
inline constexpr std::int64_t kVersion = 1;
// Tokens and heads are 32-bit in kernels; layers and heads have 12 and 16 bits in random streams.
inline constexpr std::int64_t kMostTokens = 0x7fffffff;
inline constexpr std::int64_t kMostLayer = 4095;
inline constexpr std::int64_t kMostHeads = 65535;
inline constexpr std::int64_t kMostDim = 65536;
// With these, and elements below 2^40 (traces/finite.h), logits stay within float32.
inline constexpr double kLeastScale = 1e-6;
inline constexpr double kMostScale = 1e6;
inline constexpr double kLeastLogitCap = 1e-3;  // or 0: none
inline constexpr double kMostLogitCap = 1e6;
inline constexpr double kMostRopeTheta = 1e15;

/// Where problems go: the reader throws at the first one, the check collects all of them. After a
/// report that returns, the functions below go on with what is still meaningful.
using Report = std::function<void(const std::string&)>;

/// Throws every problem as a RuntimeError.
Report throw_problems();

hdf5::NumberType number_type(ElementType type);
/// None for types that K, V and Q cannot have.
std::optional<ElementType> element_type(hdf5::NumberType type);

std::string layer_group(int layer);
std::string parameters_group(int layer);
std::string state_group(int layer);
/// How a learned parameter is stored: its shape without leading ones.
hdf5::Extent parameter_extent(const HostTensor& tensor);
/// A dataset of a layer and the shape it must have.
struct TensorShape {
  const char* name;
  hdf5::Extent extent;     // -1: any
  const char* dimensions;  // in words, for messages
};
/// Shape of k, v, kv, q, o, probe, attention_sum or sink_logits.
TensorShape tensor_shape(const std::string& name, const TraceInfo& trace, const LayerInfo& layer);

/// Opens a file whose attributes, names and shapes the HDF5 library is known to survive.
hdf5::File open_file(const std::string& path);

/// Attributes and datasets of the file without their data. Layers with problems are left out of the
/// result when `report` returns.
TraceInfo read_info(const hdf5::File& file, const Report& report);
/// Data of a layer that `read_info` accepted.
TraceLayer read_layer(const hdf5::File& file, const TraceInfo& trace, const LayerInfo& layer,
                      const Report& report);
/// What methods prepared: names, types and shapes; then the data of a layer that passed.
bool check_prepared(const hdf5::File& file, const LayerInfo& layer, const Report& report);
PreparedStates read_prepared(const hdf5::File& file, const LayerInfo& layer);
std::vector<std::int32_t> read_tokens(const hdf5::File& file, const TraceInfo& trace,
                                      const Report& report);

}  // namespace kvsim::trace_format
