#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "core/error.h"
#include "core/text_file.h"
#include "traces/finite.h"
#include "traces/import.h"
#include "traces/safetensors.h"
#include "traces/trace_file.h"
#include "traces/trace_format.h"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// One line of a FlashInfer-Trace file and the safetensors files it names.
class Workload {
 public:
  Workload(std::string where, const std::string& file, json line)
      : where_(std::move(where)),
        folder_(fs::absolute(file).parent_path()),
        line_(std::move(line)) {
    const bool complete = line_.is_object() && line_.contains("definition") &&
                          line_["definition"].is_string() && line_.contains("workload") &&
                          line_["workload"].is_object() && line_["workload"].contains("inputs") &&
                          line_["workload"]["inputs"].is_object();
    if (!complete) {
      fail<RuntimeError>(
          "{}: expected an object with 'definition' and 'workload', the latter with "
          "'inputs'",
          where_);
    }
  }

  const std::string& where() const { return where_; }
  std::string definition() const { return line_["definition"].get<std::string>(); }
  bool has(const std::string& input) const { return inputs().contains(input); }

  /// A tensor that an input names: its file, opened once, and its key there.
  struct Tensor {
    std::shared_ptr<SafetensorsFile> file;
    std::string key;
    const SafetensorsEntry& entry() const { return file->at(key); }
  };

  Tensor tensor(const std::string& input) {
    const json& found = descriptor(input);
    const std::string type = found["type"].get<std::string>();
    if (type == "random") {
      fail<RuntimeError>("{}: input '{}' is of type random: the file holds no data for it", where_,
                         input);
    }
    const bool complete = type == "safetensors" && found.contains("path") &&
                          found["path"].is_string() && found.contains("tensor_key") &&
                          found["tensor_key"].is_string();
    if (!complete) {
      fail<RuntimeError>(
          "{}: input '{}': type is '{}', expected safetensors with path and tensor_key", where_,
          input, type);
    }
    for (const char* key : {"stride", "strides", "storage_offset"}) {
      if (found.contains(key)) {
        fail<RuntimeError>("{}: input '{}' has '{}': only contiguous tensors can be imported",
                           where_, input, key);
      }
    }
    Tensor tensor{open(found["path"].get<std::string>()), found["tensor_key"].get<std::string>()};
    tensor.entry();
    return tensor;
  }

  double scalar(const std::string& input) {
    const json& found = descriptor(input);
    if (found["type"] != "scalar") return scalar_tensor(input);
    if (!found.contains("value") || !found["value"].is_number()) {
      fail<RuntimeError>("{}: input '{}': expected a number as value", where_, input);
    }
    return found["value"].get<double>();
  }

  /// Refuses an axis that is given with another value.
  void check_axis(const char* axis, std::int64_t value) const {
    const json& workload = line_["workload"];
    if (!workload.contains("axes") || !workload["axes"].contains(axis)) return;
    const json& given = workload["axes"][axis];
    if (!given.is_number_integer() || given.get<std::int64_t>() != value) {
      fail<RuntimeError>("{}: axis '{}' is {}, expected {} from the tensors", where_, axis,
                         given.dump(), value);
    }
  }

 private:
  const json& inputs() const { return line_["workload"]["inputs"]; }

  const json& descriptor(const std::string& input) const {
    if (!has(input)) fail<RuntimeError>("{}: input '{}' is missing", where_, input);
    const json& found = inputs()[input];
    if (!found.is_object() || !found.contains("type") || !found["type"].is_string()) {
      fail<RuntimeError>("{}: input '{}': expected an object with 'type'", where_, input);
    }
    return found;
  }

  double scalar_tensor(const std::string& input) {
    const Tensor found = tensor(input);
    const HostTensor values = found.file->read_tensor(found.key);
    if (values.elements() != 1) {
      fail<RuntimeError>("{}: input '{}' has {} values, expected 1", where_, input,
                         values.elements());
    }
    float value = 0;
    load_rows(values.rows(0), 0, 1, 1, &value);
    return value;
  }

  /// Paths are relative to the root of the data set, which lies above the folder of the file.
  std::shared_ptr<SafetensorsFile> open(const std::string& path) {
    for (const auto& [known, file] : files_) {
      if (known == path) return file;
    }
    fs::path found = path;
    std::error_code ignored;
    for (fs::path folder = folder_; fs::path(path).is_relative(); folder = folder.parent_path()) {
      found = folder / path;
      if (fs::exists(found, ignored) || folder == folder.parent_path()) break;
    }
    if (!fs::exists(found, ignored)) {
      fail<RuntimeError>("{}: '{}' is not found in the folder of the file or above it", where_,
                         path);
    }
    files_.emplace_back(path, std::make_shared<SafetensorsFile>(found.string()));
    return files_.back().second;
  }

  std::string where_;
  fs::path folder_;
  json line_;
  std::vector<std::pair<std::string, std::shared_ptr<SafetensorsFile>>> files_;
};

std::vector<std::string> read_lines(const std::string& path) {
  const std::string text = read_text_file(path);
  if (std::string_view(path).ends_with(".json")) return {text};
  std::vector<std::string> lines;
  std::istringstream rest(text);
  for (std::string line; std::getline(rest, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(line);
  }
  return lines;
}

Workload choose_workload(const std::string& path, const ImportOptions& options) {
  const std::vector<std::string> lines = read_lines(path);
  const auto count = static_cast<std::int64_t>(lines.size());
  if (count == 0) fail<RuntimeError>("{}: holds no workload", path);
  if (!options.workload && count > 1) {
    fail<UsageError>("{}: holds {} workloads, choose one of 0 to {}", path, count, count - 1);
  }
  const std::int64_t index = options.workload.value_or(0);
  if (index < 0 || index >= count) {
    fail<UsageError>("{}: workload {} does not exist, expected 0 to {}", path, index, count - 1);
  }
  json line = json::parse(lines[static_cast<std::size_t>(index)], nullptr, false);
  const std::string where = fmt::format("{}: workload {}", path, index);
  if (line.is_discarded()) fail<RuntimeError>("{}: no valid JSON", where);
  return Workload(where, path, std::move(line));
}

/// The rows of one request in a paged cache.
struct PageTable {
  std::vector<std::int64_t> pages;
  std::int64_t page_size = 0;
  std::int64_t tokens = 0;
};

std::vector<std::int64_t> read_integers(Workload& workload, const char* input) {
  const Workload::Tensor tensor = workload.tensor(input);
  if (tensor.entry().shape.size() != 1) {
    fail<RuntimeError>("{}: input '{}' has {} dimensions, expected 1", workload.where(), input,
                       tensor.entry().shape.size());
  }
  return tensor.file->read_integers(tensor.key);
}

std::int64_t choose_sequence(const Workload& workload, std::int64_t batch,
                             const ImportOptions& options) {
  if (!options.sequence && batch > 1) {
    fail<UsageError>("{}: the batch holds {} sequences, choose one of 0 to {}", workload.where(),
                     batch, batch - 1);
  }
  const std::int64_t sequence = options.sequence.value_or(0);
  if (sequence < 0 || sequence >= batch) {
    fail<UsageError>("{}: sequence {} does not exist, expected 0 to {}", workload.where(), sequence,
                     batch - 1);
  }
  return sequence;
}

PageTable read_page_table(Workload& workload, std::int64_t batch, std::int64_t sequence,
                          std::int64_t cache_pages, std::int64_t page_size) {
  const std::vector<std::int64_t> starts = read_integers(workload, "kv_indptr");
  const std::vector<std::int64_t> indices = read_integers(workload, "kv_indices");
  workload.check_axis("len_indptr", static_cast<std::int64_t>(starts.size()));
  workload.check_axis("num_kv_indices", static_cast<std::int64_t>(indices.size()));
  const auto count = static_cast<std::int64_t>(indices.size());
  const bool ordered = static_cast<std::int64_t>(starts.size()) == batch + 1 &&
                       std::is_sorted(starts.begin(), starts.end()) && starts.front() >= 0 &&
                       starts.back() <= count;
  if (!ordered) {
    fail<RuntimeError>(
        "{}: kv_indptr: expected {} ascending values from 0 to {} (the length of "
        "kv_indices)",
        workload.where(), batch + 1, count);
  }
  const auto at = static_cast<std::size_t>(sequence);
  PageTable table;
  table.page_size = page_size;
  table.pages.assign(indices.begin() + starts[at], indices.begin() + starts[at + 1]);
  for (const std::int64_t page : table.pages) {
    if (page < 0 || page >= cache_pages) {
      fail<RuntimeError>("{}: kv_indices: page {}, expected 0 to {}", workload.where(), page,
                         cache_pages - 1);
    }
  }
  std::int64_t last = 1;
  if (workload.has("kv_last_page_len") || page_size > 1) {
    const std::vector<std::int64_t> lengths = read_integers(workload, "kv_last_page_len");
    last = at < lengths.size() ? lengths[at] : 0;
  }
  if (last < 1 || last > page_size) {
    fail<RuntimeError>("{}: kv_last_page_len: {} for sequence {}, expected 1 to {}",
                       workload.where(), last, sequence, page_size);
  }
  table.tokens = (static_cast<std::int64_t>(table.pages.size()) - 1) * page_size + last;
  if (table.tokens < 2) {
    fail<RuntimeError>("{}: sequence {} has {} cached tokens, expected at least 2",
                       workload.where(), sequence, std::max<std::int64_t>(table.tokens, 0));
  }
  return table;
}

/// Copies the request's rows of a cache [pages, page_size, (heads,) dim] to columns [column, column
/// + dim) of `out` [heads, tokens, width].
void gather(const Workload::Tensor& cache, const PageTable& table, std::int64_t column,
            HostTensor& out) {
  const std::vector<std::int64_t>& shape = cache.entry().shape;
  const std::int64_t heads = out.shape[0];
  const std::int64_t element = bytes_of(out.type);
  const std::int64_t row_bytes = shape.back() * element;
  const std::int64_t width = out.shape[2] * element;
  const std::int64_t page_bytes = table.page_size * heads * row_bytes;
  std::vector<std::byte> page(static_cast<std::size_t>(page_bytes));
  for (std::int64_t token = 0; token < table.tokens; ++token) {
    const std::int64_t in_page = token % table.page_size;
    if (in_page == 0) {
      const auto index = static_cast<std::size_t>(token / table.page_size);
      cache.file->read(cache.entry(), table.pages[index] * page_bytes, page);
    }
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::byte* from = page.data() + (in_page * heads + head) * row_bytes;
      std::copy_n(from, row_bytes,
                  out.data.data() + (head * out.shape[1] + token) * width + column * element);
    }
  }
}

/// Copies a request's query [batch, q_heads, dim] to columns from `column` of `out`.
void gather_query(const Workload::Tensor& queries, std::int64_t sequence, std::int64_t column,
                  HostTensor& out) {
  const std::vector<std::int64_t>& shape = queries.entry().shape;
  const std::int64_t row_bytes = shape[2] * bytes_of(out.type);
  std::vector<std::byte> rows(static_cast<std::size_t>(shape[1] * row_bytes));
  queries.file->read(queries.entry(), sequence * static_cast<std::int64_t>(rows.size()), rows);
  for (std::int64_t head = 0; head < shape[1]; ++head) {
    std::copy_n(rows.data() + head * row_bytes, row_bytes,
                out.data.data() + (head * out.shape[2] + column) * bytes_of(out.type));
  }
}

HostTensor make_tensor(ElementType type, std::int64_t a, std::int64_t b, std::int64_t c) {
  HostTensor tensor;
  tensor.type = type;
  tensor.shape = {a, b, c};
  tensor.data.resize(static_cast<std::size_t>(tensor.elements() * bytes_of(type)));
  return tensor;
}

/// Which inputs make up keys, values and queries. MLA has two parts of keys and queries, and values
/// are the first part of the keys.
struct Family {
  const char* prefix;
  bool latent;
  std::vector<const char*> queries;
  std::vector<const char*> keys;
};

Family find_family(const Workload& workload) {
  const std::string definition = workload.definition();
  const Family families[] = {
      {"gqa_paged_decode", false, {"q"}, {"k_cache"}},
      {"mla_paged_decode", true, {"q_nope", "q_pe"}, {"ckv_cache", "kpe_cache"}},
  };
  for (const Family& family : families) {
    if (definition.starts_with(family.prefix)) return family;
  }
  fail<RuntimeError>("{}: definition is '{}', expected gqa_paged_decode... or mla_paged_decode...",
                     workload.where(), definition);
}

Workload::Tensor checked_tensor(Workload& workload, const char* input, std::size_t rank,
                                std::optional<ElementType> type) {
  Workload::Tensor tensor = workload.tensor(input);
  const std::vector<std::int64_t>& shape = tensor.entry().shape;
  if (shape.size() != rank || std::count(shape.begin(), shape.end(), 0) > 0) {
    fail<RuntimeError>("{}: input '{}': shape is {}, expected {} dimensions, none of them 0",
                       workload.where(), input, hdf5::to_string(shape), rank);
  }
  const ElementType found = tensor.file->element_type(tensor.key);
  if (type && *type != found) {
    fail<RuntimeError>("{}: input '{}' is {}, expected {} as the other part", workload.where(),
                       input, to_string(found), to_string(*type));
  }
  return tensor;
}

void require_same(const Workload& workload, const char* what, std::int64_t a, std::int64_t b) {
  if (a != b) {
    fail<RuntimeError>("{}: {}: {} and {} differ", workload.where(), what, a, b);
  }
}

/// Queries of the chosen request.
struct Queries {
  HostTensor rows;                   // [1, q_heads, head_dim]
  std::vector<std::int64_t> widths;  // of the parts that make up head_dim
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
};

Queries read_queries(Workload& workload, const Family& family, const ImportOptions& options) {
  Queries result;
  std::vector<Workload::Tensor> parts;
  std::optional<ElementType> type;
  std::int64_t width = 0;
  for (const char* input : family.queries) {
    parts.push_back(checked_tensor(workload, input, 3, type));
    type = parts.back().file->element_type(parts.back().key);
    const std::vector<std::int64_t>& shape = parts.back().entry().shape;
    const std::vector<std::int64_t>& first = parts.front().entry().shape;
    require_same(workload, "batch sizes of the queries", first[0], shape[0]);
    require_same(workload, "heads of the queries", first[1], shape[1]);
    result.widths.push_back(shape[2]);
    width += shape[2];
  }
  result.batch = parts.front().entry().shape[0];
  workload.check_axis("batch_size", result.batch);
  result.sequence = choose_sequence(workload, result.batch, options);
  result.rows = make_tensor(*type, 1, parts.front().entry().shape[1], width);
  std::int64_t column = 0;
  for (const Workload::Tensor& part : parts) {
    gather_query(part, result.sequence, column, result.rows);
    column += part.entry().shape[2];
  }
  return result;
}

/// Caches of the family's keys, of one type, with pages of one size.
std::vector<Workload::Tensor> open_caches(Workload& workload, const Family& family,
                                          const Queries& queries) {
  std::vector<Workload::Tensor> caches;
  std::optional<ElementType> type;
  for (std::size_t i = 0; i < family.keys.size(); ++i) {
    caches.push_back(checked_tensor(workload, family.keys[i], family.latent ? 3 : 4, type));
    type = caches.back().file->element_type(caches.back().key);
    const std::vector<std::int64_t>& shape = caches.back().entry().shape;
    const std::vector<std::int64_t>& first = caches.front().entry().shape;
    require_same(workload, "pages of the caches", first[0], shape[0]);
    require_same(workload, "page sizes of the caches", first[1], shape[1]);
    require_same(workload, "head sizes of queries and keys", queries.widths[i], shape.back());
  }
  workload.check_axis("num_pages", caches.front().entry().shape[0]);
  return caches;
}

TraceLayer read_request(Workload& workload, const Family& family, const Queries& queries) {
  TraceLayer layer;
  layer.q = queries.rows;
  const std::vector<Workload::Tensor> caches = open_caches(workload, family, queries);
  const std::vector<std::int64_t>& shape = caches.front().entry().shape;
  const std::int64_t heads = family.latent ? 1 : shape[2];
  const ElementType type = caches.front().file->element_type(caches.front().key);
  const PageTable table =
      read_page_table(workload, queries.batch, queries.sequence, shape[0], shape[1]);
  layer.k = make_tensor(type, heads, table.tokens, layer.q.shape[2]);
  std::int64_t column = 0;
  for (const Workload::Tensor& cache : caches) {
    gather(cache, table, column, layer.k);
    column += cache.entry().shape.back();
  }
  if (!family.latent) {
    const Workload::Tensor values = checked_tensor(workload, "v_cache", 4, type);
    for (std::size_t i = 0; i < 3; ++i) {
      require_same(workload, "pages, page sizes or heads of k_cache and v_cache", shape[i],
                   values.entry().shape[i]);
    }
    layer.v = make_tensor(type, heads, table.tokens, values.entry().shape[3]);
    gather(values, table, 0, layer.v);
  }
  layer.info.layout = family.latent ? KvLayout::kLatent : KvLayout::kHeads;
  layer.info.v_head_dim = static_cast<int>(family.latent ? shape.back() : layer.v.shape[2]);
  return layer;
}

void refuse_unusable(const Workload& workload, const char* name, const HostTensor& tensor) {
  const auto bad = first_unusable(tensor.data, tensor.type);
  if (!bad) return;
  fail<RuntimeError>("{}: {}: value at head {}, token {}, dimension {} of the request {}",
                     workload.where(), name, *bad / tensor.shape[2] / tensor.shape[1],
                     *bad / tensor.shape[2] % tensor.shape[1], *bad % tensor.shape[2],
                     unusable_text(tensor.data, tensor.type, *bad));
}

}  // namespace

ImportResult import_flashinfer(const std::string& input, const std::string& output,
                               const ImportOptions& options) {
  Workload workload = choose_workload(input, options);
  const Family family = find_family(workload);
  const Queries queries = read_queries(workload, family, options);
  TraceLayer layer = read_request(workload, family, queries);
  refuse_unusable(workload, "keys", layer.k);
  refuse_unusable(workload, "values", layer.v);
  refuse_unusable(workload, "queries", layer.q);
  layer.info.q_heads = static_cast<int>(layer.q.shape[1]);
  layer.info.kv_heads = static_cast<int>(layer.k.shape[0]);
  layer.info.head_dim = static_cast<int>(layer.q.shape[2]);
  layer.info.kv_type = layer.k.type;
  layer.info.scale = workload.scalar("sm_scale");
  if (layer.info.q_heads % layer.info.kv_heads != 0) {
    fail<RuntimeError>("{}: {} query heads and {} KV heads, expected a whole multiple",
                       workload.where(), layer.info.q_heads, layer.info.kv_heads);
  }
  const double scale = layer.info.scale;
  if (!(scale >= trace_format::kLeastScale && scale <= trace_format::kMostScale)) {
    fail<RuntimeError>("{}: sm_scale is {}, expected {} to {}", workload.where(), scale,
                       trace_format::kLeastScale, trace_format::kMostScale);
  }
  ImportResult result;
  result.info.model = workload.definition();
  result.info.source =
      fmt::format("FlashInfer-Trace {}, sequence {}", workload.where(), queries.sequence);
  result.info.prompt_tokens = layer.k.shape[1] - 1;
  result.info.decode_steps = 1;
  result.info.rope = "applied";
  result.info.rope_scaling = "none";
  result.notes = {
      "taken as post-RoPE, as the cache of a serving engine holds it; rope_theta is unknown",
      "the layer's number is unknown: stored as layer 0"};
  TraceWriter writer(output, result.info, {options.force, options.compress});
  writer.write_layer(layer);
  writer.commit();
  result.info.layers.push_back(layer.info);
  result.info.path = output;
  return result;
}

}  // namespace kvsim
