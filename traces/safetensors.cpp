#include "traces/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/hdf5.h"

namespace kvsim {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMostHeaderBytes = 100'000'000;  // the limit of the reference implementation

/// Bytes of an element, 0 for a dtype we do not know.
std::int64_t bytes_of_dtype(std::string_view dtype) {
  constexpr std::array<std::pair<std::string_view, std::int64_t>, 14> kSizes{{
      {"BOOL", 1},
      {"U8", 1},
      {"I8", 1},
      {"F8_E4M3", 1},
      {"F8_E5M2", 1},
      {"U16", 2},
      {"I16", 2},
      {"F16", 2},
      {"BF16", 2},
      {"U32", 4},
      {"I32", 4},
      {"F32", 4},
      {"I64", 8},
      {"F64", 8},
  }};
  for (const auto& [name, size] : kSizes) {
    if (name == dtype) return size;
  }
  return 0;
}

nlohmann::json parse_header(const std::string& path, const std::string& text) {
  nlohmann::json header = nlohmann::json::parse(text, nullptr, false);
  if (header.is_discarded())
    fail<RuntimeError>("{}: the safetensors header is no valid JSON", path);
  if (!header.is_object()) fail<RuntimeError>("{}: the safetensors header is no JSON object", path);
  return header;
}

std::map<std::string, std::string> parse_metadata(const std::string& path,
                                                  const nlohmann::json& json) {
  std::map<std::string, std::string> metadata;
  if (!json.is_object()) fail<RuntimeError>("{}: __metadata__ is no JSON object", path);
  for (const auto& item : json.items()) {
    if (!item.value().is_string()) {
      fail<RuntimeError>("{}: __metadata__ '{}' is {}, expected a string", path, item.key(),
                         item.value().type_name());
    }
    metadata[item.key()] = item.value().get<std::string>();
  }
  return metadata;
}

bool is_size_list(const nlohmann::json& json) {
  return json.is_array() && std::all_of(json.begin(), json.end(), [](const nlohmann::json& value) {
           return value.is_number_unsigned() && value.get<std::uint64_t>() < (1ull << 62);
         });
}

SafetensorsEntry parse_entry(const std::string& where, const nlohmann::json& json,
                             std::int64_t data_begin, std::int64_t data_bytes) {
  const bool complete = json.is_object() && json.contains("dtype") && json.contains("shape") &&
                        json.contains("data_offsets") && json["dtype"].is_string() &&
                        is_size_list(json["shape"]) && is_size_list(json["data_offsets"]) &&
                        json["data_offsets"].size() == 2;
  if (!complete) {
    fail<RuntimeError>("{}: expected an object with dtype, shape and two data_offsets", where);
  }
  SafetensorsEntry entry;
  entry.dtype = json["dtype"].get<std::string>();
  entry.shape = json["shape"].get<std::vector<std::int64_t>>();
  const auto begin = json["data_offsets"][0].get<std::int64_t>();
  const auto end = json["data_offsets"][1].get<std::int64_t>();
  if (begin > end || end > data_bytes) {
    fail<RuntimeError>(
        "{}: data_offsets are [{}, {}], expected to lie within the {} data bytes of the "
        "file (truncated?)",
        where, begin, end, data_bytes);
  }
  const std::int64_t element = bytes_of_dtype(entry.dtype);
  if (element == 0) fail<RuntimeError>("{}: unknown dtype '{}'", where, entry.dtype);
  const std::int64_t expected = hdf5::elements_of({hdf5::elements_of(entry.shape), element});
  if (end - begin != expected) {
    fail<RuntimeError>("{}: data_offsets span {} bytes, expected {} for {} {}", where, end - begin,
                       expected, entry.dtype, hdf5::to_string(entry.shape));
  }
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  return entry;
}

void refuse_overlaps(const std::string& path,
                     const std::map<std::string, SafetensorsEntry>& tensors) {
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [name, entry] : tensors) {
    if (entry.end > entry.begin) order.emplace_back(entry.begin, name);
  }
  std::sort(order.begin(), order.end());
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i].first < tensors.at(order[i - 1].second).end) {
      fail<RuntimeError>("{}: tensors '{}' and '{}' overlap", path, order[i - 1].second,
                         order[i].second);
    }
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), stream_(path, std::ios::binary) {
  if (!stream_) fail<RuntimeError>("{}: cannot open the file", path);
  if (std::filesystem::is_directory(path)) {
    fail<RuntimeError>("{}: is a folder, expected a file", path);
  }
  stream_.seekg(0, std::ios::end);
  bytes_ = static_cast<std::int64_t>(stream_.tellg());
  std::uint64_t length = 0;
  if (bytes_ < kLengthBytes)
    fail<RuntimeError>("{}: {} bytes are no safetensors file", path, bytes_);
  read_bytes(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > static_cast<std::uint64_t>(std::min(bytes_ - kLengthBytes, kMostHeaderBytes))) {
    fail<RuntimeError>(
        "{}: the header shall have {} bytes, the file has {} (truncated, or no "
        "safetensors file)",
        path, length, bytes_);
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  read_bytes(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const nlohmann::json header = parse_header(path, text);
  const std::int64_t data_begin = kLengthBytes + static_cast<std::int64_t>(length);
  for (const auto& item : header.items()) {
    if (item.key() == "__metadata__") {
      metadata_ = parse_metadata(path, item.value());
    } else {
      tensors_[item.key()] = parse_entry(fmt::format("{}: tensor '{}'", path, item.key()),
                                         item.value(), data_begin, bytes_ - data_begin);
    }
  }
  refuse_overlaps(path, tensors_);
}

void SafetensorsFile::read_bytes(std::int64_t begin, std::span<std::byte> out) const {
  stream_.clear();
  stream_.seekg(begin);
  stream_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  if (!stream_) fail<RuntimeError>("{}: cannot read {} bytes at {}", path_, out.size(), begin);
}

const SafetensorsEntry& SafetensorsFile::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  constexpr std::size_t kMostListed = 12;
  std::vector<std::string> names;
  for (const auto& [other, entry] : tensors_) {
    if (names.size() < kMostListed) names.push_back(other);
  }
  fail<RuntimeError>("{}: tensor '{}' is missing; the file holds {}{}", path_, name,
                     names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")),
                     tensors_.size() > kMostListed ? ", ..." : "");
}

const SafetensorsEntry& SafetensorsFile::at(const std::string& name,
                                            const std::vector<std::int64_t>& shape) const {
  const SafetensorsEntry& entry = at(name);
  const bool fits = std::equal(entry.shape.begin(), entry.shape.end(), shape.begin(), shape.end(),
                               [](std::int64_t a, std::int64_t b) { return a == b || b == -1; });
  if (!fits) {
    fail<RuntimeError>("{}: tensor '{}': shape is {}, expected {}", path_, name,
                       hdf5::to_string(entry.shape), hdf5::to_string(shape));
  }
  return entry;
}

ElementType SafetensorsFile::element_type(const std::string& name) const {
  const std::string& dtype = at(name).dtype;
  if (dtype == "F32") return ElementType::kFloat32;
  if (dtype == "F16") return ElementType::kFloat16;
  if (dtype == "BF16") return ElementType::kBfloat16;
  fail<RuntimeError>("{}: tensor '{}': dtype is {}, expected F32, F16 or BF16", path_, name, dtype);
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::int64_t offset,
                           std::span<std::byte> out) const {
  KVSIM_CHECK(offset >= 0 &&
              entry.begin + offset + static_cast<std::int64_t>(out.size()) <= entry.end);
  if (!out.empty()) read_bytes(entry.begin + offset, out);
}

HostTensor SafetensorsFile::read_tensor(const std::string& name) const {
  const SafetensorsEntry& entry = at(name);
  KVSIM_CHECK(entry.shape.size() <= 3);
  HostTensor tensor;
  tensor.type = element_type(name);
  tensor.shape = {1, 1, 1};
  std::copy_backward(entry.shape.begin(), entry.shape.end(), tensor.shape.end());
  tensor.data.resize(static_cast<std::size_t>(entry.end - entry.begin));
  read(entry, 0, tensor.data);
  return tensor;
}

std::vector<std::int64_t> SafetensorsFile::read_integers(const std::string& name) const {
  const SafetensorsEntry& entry = at(name);
  std::vector<std::int64_t> values(static_cast<std::size_t>(hdf5::elements_of(entry.shape)));
  if (entry.dtype == "I64") {
    read(entry, 0, std::as_writable_bytes(std::span(values)));
  } else if (entry.dtype == "I32") {
    std::vector<std::int32_t> narrow(values.size());
    read(entry, 0, std::as_writable_bytes(std::span(narrow)));
    std::copy(narrow.begin(), narrow.end(), values.begin());
  } else {
    fail<RuntimeError>("{}: tensor '{}': dtype is {}, expected I32 or I64", path_, name,
                       entry.dtype);
  }
  return values;
}

}  // namespace kvsim
