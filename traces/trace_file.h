#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/hdf5.h"
#include "core/output_file.h"
#include "traces/trace.h"

namespace kvsim {

/// Reads a trace file (docs/formats.md), one layer at a time, so that memory is bounded by a layer.
/// Everything that is wrong with a file is a RuntimeError that names file, object, what was found
/// and what was expected.
class TraceReader {
 public:
  /// Opens the file and checks all attributes, and names, types and shapes of all datasets.
  explicit TraceReader(const std::string& path);

  const TraceInfo& info() const { return info_; }
  /// Reads layer `info().layers[index]` and checks that all its values are finite. K, V and Q keep
  /// the type they are stored in.
  TraceLayer read_layer(std::size_t index) const;
  /// [tokens] token ids, or empty if the file has none.
  std::vector<std::int32_t> read_tokens() const;

 private:
  hdf5::File file_;
  TraceInfo info_;
};

struct TraceWriteOptions {
  bool force = false;     // overwrite
  bool compress = false;  // shuffle and gzip 1: 70 % of the size, a tenth of the speed
};

/// Writes the tensors of one layer, whole or in parts. Made by TraceWriter::begin_layer.
class TraceLayerWriter {
 public:
  /// Rows [first, first + rows) of a KV head, stored as `info.kv_type`. With the latent layout
  /// `write_keys` takes the rows of `kv`, and there are no values to write.
  void write_keys(int kv_head, std::int64_t first, const RowsView& rows);
  void write_values(int kv_head, std::int64_t first, const RowsView& rows);
  /// A whole tensor by its name in the file: q, o, probe. Non-finite values are a RuntimeError.
  void write_tensor(const std::string& name, const HostTensor& tensor);
  void write_attention_sum(const HostTensor& tensor);
  void write_sink_logits(std::span<const float> values);
  /// Leading ones of the shape are not stored.
  void write_parameter(const std::string& name, const HostTensor& tensor);
  void write_prepared(const std::string& method, const PreparedState& state);

 private:
  friend class TraceWriter;
  TraceLayerWriter(hdf5::File& file, const TraceInfo& trace, const LayerInfo& layer,
                   hdf5::DatasetOptions options);
  void write_rows(hdf5::Dataset& dataset, int kv_head, std::int64_t first, const RowsView& rows);
  void write_whole(const std::string& object, const HostTensor& tensor, const hdf5::Extent& extent);

  hdf5::File* file_;
  LayerInfo layer_;
  std::string group_;
  hdf5::DatasetOptions options_;
  std::optional<hdf5::Dataset> keys_;
  std::optional<hdf5::Dataset> values_;
};

/// Writes a trace file. The file appears whole, at `commit`, or not at all.
class TraceWriter {
 public:
  /// Of `info` the layers and the path are ignored: layers come one by one.
  TraceWriter(const std::string& path, const TraceInfo& info, const TraceWriteOptions& options);

  void write_tokens(std::span<const std::int32_t> tokens);
  void write_layer(const TraceLayer& layer);
  /// For layers that do not fit into memory. All rows must be written before `commit`; one layer at
  /// a time; the result must not outlive the writer.
  TraceLayerWriter begin_layer(const LayerInfo& layer);
  void commit();

 private:
  OutputFile output_;
  hdf5::File file_;
  TraceInfo info_;
  hdf5::DatasetOptions options_;
};

}  // namespace kvsim
