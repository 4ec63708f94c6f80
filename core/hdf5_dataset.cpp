#include <algorithm>

#include "core/error.h"
#include "core/hdf5.h"

namespace kvsim::hdf5 {
namespace {

std::vector<hsize_t> sizes(const Extent& extent) { return {extent.begin(), extent.end()}; }

Handle space_of(hid_t dataset) { return Handle(H5Dget_space(dataset), H5Sclose); }

Extent extent_of(hid_t space) {
  const int rank = H5Sget_simple_extent_ndims(space);
  std::vector<hsize_t> dims(static_cast<std::size_t>(std::max(rank, 0)));
  if (rank > 0) H5Sget_simple_extent_dims(space, dims.data(), nullptr);
  Extent extent;
  for (const hsize_t size : dims) extent.push_back(static_cast<std::int64_t>(size));
  return extent;
}

std::int64_t file_bytes(hid_t object) {
  const Handle file(H5Iget_file_id(object), H5Fclose);
  hsize_t bytes = 0;
  if (!file || H5Fget_filesize(file.id(), &bytes) < 0) return 0;
  return static_cast<std::int64_t>(bytes);
}

std::string trim_fixed(const char* text, std::size_t size, H5T_str_t padding) {
  std::string result(text, size);
  const auto end = result.find('\0');
  if (end != std::string::npos) result.resize(end);
  if (padding == H5T_STR_SPACEPAD) result.erase(result.find_last_not_of(' ') + 1);
  return result;
}

}  // namespace

Dataset::Dataset(std::string file, std::string name, Handle id)
    : file_(std::move(file)),
      name_(std::move(name)),
      id_(std::move(id)),
      type_id_(H5Dget_type(id_.id()), H5Tclose) {
  const Handle space = space_of(id_.id());
  if (!type_id_ || !space) fail_with("cannot read type and shape");
  if (H5Sget_simple_extent_type(space.id()) == H5S_NULL) fail_with("has no elements");
  extent_ = extent_of(space.id());
  description_ = describe_type(type_id_.id());
}

void Dataset::fail_with(const std::string& what) const {
  const std::string reason = last_reason();
  fail<RuntimeError>("{}: {}: {}{}{}", file_, name_, what, reason.empty() ? "" : ": ", reason);
}

std::int64_t Dataset::checked_bytes() const {
  // deflate makes at most 1032 bytes out of one.
  constexpr std::int64_t kMostExpansion = 1100;
  const auto element = static_cast<std::int64_t>(H5Tget_size(type_id_.id()));
  const std::int64_t bytes = elements_of({elements_of(extent_), element});
  if (bytes == 0) return 0;
  const Handle properties(H5Dget_create_plist(id_.id()), H5Pclose);
  if (!properties) fail_with("cannot read how it is stored");
  const auto stored = static_cast<std::int64_t>(H5Dget_storage_size(id_.id()));
  const std::int64_t present = std::min(std::max<std::int64_t>(stored, 0), file_bytes(id_.id()));
  const bool filtered = H5Pget_nfilters(properties.id()) > 0;
  const bool complete =
      filtered ? present > 0 && bytes / kMostExpansion <= present : present >= bytes;
  if (!complete) {
    fail<RuntimeError>("{}: {}: shape {} needs {} bytes, the file holds {} of it", file_, name_,
                       to_string(extent_), bytes, present);
  }
  return bytes;
}

Handle Dataset::select(const Extent& offset, const Extent& count) const {
  KVSIM_CHECK(offset.size() == extent_.size() && count.size() == extent_.size());
  for (std::size_t i = 0; i < extent_.size(); ++i) {
    KVSIM_CHECK(offset[i] >= 0 && count[i] >= 0 && offset[i] <= extent_[i] - count[i]);
  }
  Handle space = space_of(id_.id());
  const bool selected =
      space && H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, sizes(offset).data(), nullptr,
                                   sizes(count).data(), nullptr) >= 0;
  if (!selected) fail_with("cannot select a part");
  return space;
}

void Dataset::read_raw(std::span<std::byte> out) const {
  KVSIM_CHECK(static_cast<std::int64_t>(out.size()) == checked_bytes());
  if (out.empty()) return;
  if (H5Dread(id_.id(), type_id_.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data()) < 0) {
    fail_with("cannot read");
  }
}

void Dataset::read_raw(const Extent& offset, const Extent& count, std::span<std::byte> out) const {
  KVSIM_CHECK(out.size() ==
              static_cast<std::size_t>(elements_of(count)) * H5Tget_size(type_id_.id()));
  if (out.empty()) return;
  const Handle file_space = select(offset, count);
  const Handle memory(
      H5Screate_simple(static_cast<int>(count.size()), sizes(count).data(), nullptr), H5Sclose);
  if (H5Dread(id_.id(), type_id_.id(), memory.id(), file_space.id(), H5P_DEFAULT, out.data()) < 0) {
    fail_with("cannot read");
  }
}

void Dataset::write_raw(std::span<const std::byte> data) {
  KVSIM_CHECK(data.size() ==
              static_cast<std::size_t>(elements_of(extent_)) * H5Tget_size(type_id_.id()));
  if (data.empty()) return;
  if (H5Dwrite(id_.id(), type_id_.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()) < 0) {
    fail_with("cannot write");
  }
}

void Dataset::write_raw(const Extent& offset, const Extent& count,
                        std::span<const std::byte> data) {
  KVSIM_CHECK(data.size() ==
              static_cast<std::size_t>(elements_of(count)) * H5Tget_size(type_id_.id()));
  if (data.empty()) return;
  const Handle file_space = select(offset, count);
  const Handle memory(
      H5Screate_simple(static_cast<int>(count.size()), sizes(count).data(), nullptr), H5Sclose);
  if (H5Dwrite(id_.id(), type_id_.id(), memory.id(), file_space.id(), H5P_DEFAULT, data.data()) <
      0) {
    fail_with("cannot write");
  }
}

void Dataset::read_as(NumberType type, void* out) const {
  const H5T_class_t found = H5Tget_class(type_id_.id());
  if (found != H5T_INTEGER && found != H5T_FLOAT) {
    fail<RuntimeError>("{}: {}: is {}, expected numbers", file_, name_, description_.text);
  }
  if (elements_of(extent_) == 0) return;
  const Handle wanted = file_type(type);
  if (H5Dread(id_.id(), wanted.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0) {
    fail_with("cannot read");
  }
}

std::vector<std::string> Dataset::read_strings() const {
  if (description_.type != NumberType::kString) {
    fail<RuntimeError>("{}: {}: is {}, expected strings", file_, name_, description_.text);
  }
  const auto count = static_cast<std::size_t>(checked_bytes()) / H5Tget_size(type_id_.id());
  std::vector<std::string> result;
  const StringKind kind = string_kind(type_id_.id());
  if (kind == StringKind::kDamaged) {
    fail<RuntimeError>("{}: {}: the type of its strings is damaged", file_, name_);
  }
  if (kind == StringKind::kVariable) {
    std::vector<char*> texts(count, nullptr);
    const herr_t status =
        H5Dread(id_.id(), type_id_.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, texts.data());
    for (char* text : texts) {
      result.emplace_back(text != nullptr ? text : "");
      H5free_memory(text);
    }
    if (status < 0) fail_with("cannot read");
    return result;
  }
  const std::size_t size = H5Tget_size(type_id_.id());
  std::vector<std::byte> bytes(count * size);
  read_raw(bytes);
  for (std::size_t i = 0; i < count; ++i) {
    result.push_back(trim_fixed(reinterpret_cast<const char*>(bytes.data() + i * size), size,
                                H5Tget_strpad(type_id_.id())));
  }
  return result;
}

}  // namespace kvsim::hdf5
