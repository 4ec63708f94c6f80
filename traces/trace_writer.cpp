#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "traces/finite.h"
#include "traces/trace_file.h"
#include "traces/trace_format.h"

namespace kvsim {
namespace {

using trace_format::layer_group;
using trace_format::number_type;
using trace_format::tensor_shape;
using trace_format::TensorShape;

void write_root(hdf5::File& file, const TraceInfo& info) {
  file.write_attribute("/", "format", std::string(trace_format::kFormat));
  file.write_attribute("/", "version", trace_format::kVersion);
  file.write_attribute("/", "model", info.model);
  file.write_attribute("/", "source", info.source);
  file.write_attribute("/", "license", info.license);
  file.write_attribute("/", "prompt_tokens", info.prompt_tokens);
  file.write_attribute("/", "decode_steps", info.decode_steps);
  file.write_attribute("/", "rope", info.rope);
  file.write_attribute("/", "rope_theta", info.rope_theta);
  file.write_attribute("/", "rope_scaling", info.rope_scaling);
  file.write_attribute("/", "rotary_dim", std::int64_t{info.rotary_dim});
  file.write_attribute("/", "synthetic", std::int64_t{info.synthetic ? 1 : 0});
}

void write_layer_attributes(hdf5::File& file, const std::string& group, const LayerInfo& layer) {
  file.write_attribute(group, "q_heads", std::int64_t{layer.q_heads});
  file.write_attribute(group, "kv_heads", std::int64_t{layer.kv_heads});
  file.write_attribute(group, "head_dim", std::int64_t{layer.head_dim});
  file.write_attribute(group, "v_head_dim", std::int64_t{layer.v_head_dim});
  file.write_attribute(group, "scale", layer.scale);
  file.write_attribute(group, "window", layer.window);
  file.write_attribute(group, "logit_cap", layer.logit_cap);
  file.write_attribute(group, "layout",
                       std::string(layer.layout == KvLayout::kLatent ? "latent" : "heads"));
}

/// True when the tensor has the shape's dimensions, leading ones added.
bool has_shape(const HostTensor& tensor, const hdf5::Extent& extent) {
  hdf5::Extent padded(3 - extent.size(), 1);
  padded.insert(padded.end(), extent.begin(), extent.end());
  return std::equal(padded.begin(), padded.end(), tensor.shape.begin(),
                    [](std::int64_t a, std::int64_t b) { return a == b || a == -1; });
}

void refuse_unusable(std::span<const std::byte> data, ElementType type, const std::string& file,
                     const std::string& object) {
  const auto found = first_unusable(data, type);
  if (found) {
    fail<RuntimeError>("{}: {}: element {} of the data to write {}", file, object, *found,
                       unusable_text(data, type, *found));
  }
}

}  // namespace

TraceLayerWriter::TraceLayerWriter(hdf5::File& file, const TraceInfo& trace, const LayerInfo& layer,
                                   hdf5::DatasetOptions options)
    : file_(&file), layer_(layer), group_(layer_group(layer.layer)), options_(options) {
  KVSIM_CHECK(layer.q_heads > 0 && layer.kv_heads > 0 && layer.q_heads % layer.kv_heads == 0);
  const bool latent = layer.layout == KvLayout::kLatent;
  KVSIM_CHECK(!latent || (layer.kv_heads == 1 && layer.v_head_dim <= layer.head_dim));
  file.create_group(group_);
  write_layer_attributes(file, group_, layer);
  const auto create = [&](const char* name) {
    return file.create_dataset(fmt::format("{}/{}", group_, name), number_type(layer.kv_type),
                               tensor_shape(name, trace, layer).extent, options_);
  };
  keys_ = create(latent ? "kv" : "k");
  if (!latent) values_ = create("v");
}

void TraceLayerWriter::write_rows(hdf5::Dataset& dataset, int kv_head, std::int64_t first,
                                  const RowsView& rows) {
  KVSIM_CHECK(rows.type == layer_.kv_type && rows.dim == dataset.extent()[2]);
  const auto row_bytes = static_cast<std::size_t>(rows.dim * bytes_of(rows.type));
  const auto bytes = static_cast<std::size_t>(rows.rows) * row_bytes;
  std::vector<std::byte> packed;
  if (rows.stride != rows.dim) {
    packed.resize(bytes);
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      std::memcpy(packed.data() + static_cast<std::size_t>(row) * row_bytes, rows.row(row),
                  row_bytes);
    }
  }
  const std::span<const std::byte> data(packed.empty() ? rows.data : packed.data(), bytes);
  refuse_unusable(data, rows.type, file_->path(), dataset.name());
  dataset.write_raw({kv_head, first, 0}, {1, rows.rows, rows.dim}, data);
}

void TraceLayerWriter::write_keys(int kv_head, std::int64_t first, const RowsView& rows) {
  write_rows(*keys_, kv_head, first, rows);
}

void TraceLayerWriter::write_values(int kv_head, std::int64_t first, const RowsView& rows) {
  KVSIM_CHECK(values_.has_value());
  write_rows(*values_, kv_head, first, rows);
}

void TraceLayerWriter::write_whole(const std::string& object, const HostTensor& tensor,
                                   const hdf5::Extent& extent) {
  refuse_unusable(tensor.data, tensor.type, file_->path(), object);
  file_->create_dataset(object, number_type(tensor.type), extent, options_).write_raw(tensor.data);
}

void TraceLayerWriter::write_tensor(const std::string& name, const HostTensor& tensor) {
  write_whole(fmt::format("{}/{}", group_, name), tensor,
              {tensor.shape.begin(), tensor.shape.end()});
}

void TraceLayerWriter::write_attention_sum(const HostTensor& tensor) {
  write_whole(group_ + "/attention_sum", tensor, {tensor.shape[1], tensor.shape[2]});
}

void TraceLayerWriter::write_sink_logits(std::span<const float> values) {
  const std::string object = group_ + "/sink_logits";
  refuse_unusable(std::as_bytes(values), ElementType::kFloat32, file_->path(), object);
  file_->write(object, values, {static_cast<std::int64_t>(values.size())});
}

void TraceLayerWriter::write_parameter(const std::string& name, const HostTensor& tensor) {
  const std::string group = trace_format::parameters_group(layer_.layer);
  if (!file_->exists(group)) file_->create_group(group);
  write_whole(fmt::format("{}/{}", group, name), tensor, trace_format::parameter_extent(tensor));
}

void TraceLayerWriter::write_prepared(const std::string& method, const PreparedState& state) {
  KVSIM_CHECK(state.heads.size() == static_cast<std::size_t>(layer_.kv_heads));
  const std::string group = fmt::format("{}/{}", trace_format::state_group(layer_.layer), method);
  for (std::size_t head = 0; head < state.heads.size(); ++head) {
    const std::string of_head = fmt::format("{}/{}", group, head);
    file_->create_group(of_head);
    for (const auto& [name, values] : state.heads[head]) {
      file_->write(fmt::format("{}/{}", of_head, name), std::span(values),
                   {static_cast<std::int64_t>(values.size())}, options_);
    }
  }
  file_->write_attribute(group, "settings", state.settings);
}

TraceWriter::TraceWriter(const std::string& path, const TraceInfo& info,
                         const TraceWriteOptions& options)
    : output_(path, options.force),
      file_(hdf5::File::create(output_.temporary(), path)),
      info_(info),
      options_{options.compress} {
  KVSIM_CHECK(info.prompt_tokens > 0 && info.decode_steps > 0);
  write_root(file_, info_);
  file_.create_group("/layers");
}

void TraceWriter::write_tokens(std::span<const std::int32_t> tokens) {
  KVSIM_CHECK(static_cast<std::int64_t>(tokens.size()) == info_.tokens());
  file_.write("/tokens", tokens, {info_.tokens()}, options_);
}

TraceLayerWriter TraceWriter::begin_layer(const LayerInfo& layer) {
  return TraceLayerWriter(file_, info_, layer, options_);
}

void TraceWriter::write_layer(const TraceLayer& layer) {
  const LayerInfo& info = layer.info;
  const auto fits = [&](const char* name, const HostTensor& tensor) {
    return has_shape(tensor, tensor_shape(name, info_, info).extent);
  };
  const bool latent = info.layout == KvLayout::kLatent;
  KVSIM_CHECK(fits(latent ? "kv" : "k", layer.k) && fits("q", layer.q));
  KVSIM_CHECK(latent || fits("v", layer.v));
  KVSIM_CHECK(!layer.output || fits("o", *layer.output));
  KVSIM_CHECK(!layer.probe || fits("probe", *layer.probe));
  KVSIM_CHECK(!layer.attention_sum || fits("attention_sum", *layer.attention_sum));
  KVSIM_CHECK(layer.sink_logits.empty() ||
              layer.sink_logits.size() == static_cast<std::size_t>(info.q_heads));
  TraceLayerWriter writer = begin_layer(info);
  for (int head = 0; head < info.kv_heads; ++head) {
    writer.write_keys(head, 0, layer.k.rows(head));
    if (!latent) writer.write_values(head, 0, layer.v.rows(head));
  }
  writer.write_tensor("q", layer.q);
  if (layer.output) writer.write_tensor("o", *layer.output);
  if (layer.probe) writer.write_tensor("probe", *layer.probe);
  if (layer.attention_sum) writer.write_attention_sum(*layer.attention_sum);
  if (!layer.sink_logits.empty()) writer.write_sink_logits(layer.sink_logits);
  for (const auto& [name, tensor] : layer.learned) writer.write_parameter(name, tensor);
  for (const auto& [method, state] : layer.prepared) writer.write_prepared(method, state);
}

void TraceWriter::commit() {
  file_.close();
  output_.commit();
}

}  // namespace kvsim
