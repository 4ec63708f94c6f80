#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/hdf5.h"

namespace kvsim::hdf5 {
namespace {

herr_t keep_innermost(unsigned, const H5E_error2_t* error, void* out) {
  std::string& reason = *static_cast<std::string*>(out);
  if (reason.empty() && error->desc != nullptr) reason = error->desc;
  return 0;
}

/// The file driver adds time, pointers and the temporary's name to the system's words.
std::string system_words(const std::string& reason) {
  constexpr std::string_view kBefore = "error message = '";
  const std::size_t found = reason.find(kBefore);
  if (found == std::string::npos) return reason;
  const std::size_t begin = found + kBefore.size();
  return reason.substr(begin, reason.find('\'', begin) - begin);
}

/// To end a message with.
std::string because(const std::string& reason) { return reason.empty() ? "" : ": " + reason; }

/// The library prints its error stack unless told not to; its reasons go into our messages instead.
void silence_library() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

/// Locks are of no use here (files are renamed into place) and fail on some network file systems.
Handle access_properties() {
  Handle properties(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(properties.id(), false, true);
  return properties;
}

Handle object_properties(hid_t kind) {
  Handle properties(H5Pcreate(kind), H5Pclose);
  H5Pset_obj_track_times(properties.id(), false);  // the same content gives the same bytes
  return properties;
}

/// Whole rows, of as many leading indices as fit into half the default chunk cache.
std::vector<hsize_t> chunk_of(const Extent& extent, std::int64_t element_bytes) {
  constexpr std::int64_t kMostBytes = 512 * 1024;
  std::vector<hsize_t> chunk(extent.size(), 1);
  std::int64_t room = std::max<std::int64_t>(kMostBytes / element_bytes, 1);
  for (std::size_t i = extent.size(); i-- > 0;) {
    const std::int64_t parts = (extent[i] + room - 1) / room;
    const std::int64_t size = (extent[i] + parts - 1) / parts;  // even parts: little padding
    chunk[i] = static_cast<hsize_t>(size);
    room /= size;
    if (parts > 1 || room < 2) break;
  }
  return chunk;
}

std::string read_string(hid_t attribute, hid_t type) {
  if (string_kind(type) == StringKind::kVariable) {
    char* text = nullptr;
    if (H5Aread(attribute, type, &text) < 0 || text == nullptr) return {};
    std::string result(text);
    H5free_memory(text);
    return result;
  }
  std::string result(H5Tget_size(type), '\0');
  if (H5Aread(attribute, type, result.data()) < 0) return {};
  result.resize(std::min(result.find('\0'), result.size()));
  if (H5Tget_strpad(type) == H5T_STR_SPACEPAD) result.erase(result.find_last_not_of(' ') + 1);
  return result;
}

}  // namespace

std::string last_reason() {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &reason);
  return system_words(reason);
}

struct File::Attribute {
  Handle id;
  Handle type;
  H5T_class_t type_class = H5T_NO_CLASS;
};

File::File(std::string path, Handle id) : path_(std::move(path)), id_(std::move(id)) {}

void File::fail_at(const std::string& object, const std::string& what) const {
  fail<RuntimeError>("{}: {}: {}{}", path_, object, what, because(last_reason()));
}

File File::open(const std::string& path) {
  silence_library();
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) fail<RuntimeError>("{}: no such file", path);
  if (std::filesystem::is_directory(status)) {
    fail<RuntimeError>("{}: is a folder, expected an HDF5 file", path);
  }
  const Handle access = access_properties();  // named: closing it would clear the reason
  Handle id(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), H5Fclose);
  if (!id) {
    const std::string reason = last_reason();
    const bool is_hdf5 = H5Fis_hdf5(path.c_str()) > 0;
    fail<RuntimeError>("{}: {}{}", path, is_hdf5 ? "cannot open the HDF5 file" : "not an HDF5 file",
                       because(reason));
  }
  return File(path, std::move(id));
}

File File::create(const std::string& path, const std::string& shown) {
  silence_library();
  const Handle access = access_properties();
  // The format of HDF5 1.8 checks its metadata, which that of 1.6 (the default) does not.
  H5Pset_libver_bounds(access.id(), H5F_LIBVER_V18, H5F_LIBVER_V18);
  const Handle properties = object_properties(H5P_FILE_CREATE);
  Handle id(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, properties.id(), access.id()), H5Fclose);
  if (!id) fail<RuntimeError>("{}: cannot create the HDF5 file{}", shown, because(last_reason()));
  return File(shown, std::move(id));
}

void File::close() {
  if (!id_) return;
  if (H5Fflush(id_.id(), H5F_SCOPE_GLOBAL) < 0 || !id_.close()) fail_at("/", "cannot finish");
}

bool File::exists(const std::string& object) const {
  for (std::size_t end = object.find('/', 1); end != std::string::npos;
       end = object.find('/', end + 1)) {
    if (H5Lexists(id_.id(), object.substr(0, end).c_str(), H5P_DEFAULT) <= 0) return false;
  }
  if (object == "/") return true;
  return H5Lexists(id_.id(), object.c_str(), H5P_DEFAULT) > 0 &&
         H5Oexists_by_name(id_.id(), object.c_str(), H5P_DEFAULT) > 0;
}

Handle File::open_object(const std::string& object) const {
  if (!exists(object)) fail<RuntimeError>("{}: {}: missing", path_, object);
  Handle id(H5Oopen(id_.id(), object.c_str(), H5P_DEFAULT), H5Oclose);
  if (!id) fail_at(object, "cannot open");
  return id;
}

bool File::is_group(const std::string& object) const {
  return exists(object) && H5Iget_type(open_object(object).id()) == H5I_GROUP;
}

std::vector<std::string> File::children(const std::string& group) const {
  const Handle id = open_object(group);
  H5G_info_t info{};
  if (H5Iget_type(id.id()) != H5I_GROUP) {
    fail<RuntimeError>("{}: {}: expected a group", path_, group);
  }
  if (H5Gget_info(id.id(), &info) < 0) fail_at(group, "cannot list");
  std::vector<std::string> names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const ssize_t size =
        H5Lget_name_by_idx(id.id(), ".", H5_INDEX_NAME, H5_ITER_INC, i, nullptr, 0, H5P_DEFAULT);
    if (size < 0) fail_at(group, "cannot list");
    std::string name(static_cast<std::size_t>(size), '\0');
    H5Lget_name_by_idx(id.id(), ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size() + 1,
                       H5P_DEFAULT);
    names.push_back(std::move(name));
  }
  return names;
}

void File::create_group(const std::string& group) {
  // Parents one by one: those that HDF5 makes by itself would record the time of day.
  for (std::size_t end = 0; end != std::string::npos;) {
    end = group.find('/', end + 1);
    const std::string path = group.substr(0, end);
    if (end != std::string::npos && H5Lexists(id_.id(), path.c_str(), H5P_DEFAULT) > 0) continue;
    const Handle properties = object_properties(H5P_GROUP_CREATE);
    const Handle id(H5Gcreate2(id_.id(), path.c_str(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
                    H5Gclose);
    if (!id) fail_at(path, "cannot create the group");
  }
}

bool File::has_attribute(const std::string& object, const std::string& name) const {
  return H5Aexists(open_object(object).id(), name.c_str()) > 0;
}

File::Attribute File::open_attribute(const std::string& object, const std::string& name) const {
  const Handle owner = open_object(object);
  if (H5Aexists(owner.id(), name.c_str()) <= 0) {
    fail<RuntimeError>("{}: {}: attribute '{}' is missing", path_, object, name);
  }
  Attribute attribute;
  attribute.id = Handle(H5Aopen(owner.id(), name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!attribute.id) fail_at(object, fmt::format("cannot open attribute '{}'", name));
  attribute.type = Handle(H5Aget_type(attribute.id.id()), H5Tclose);
  const Handle space(H5Aget_space(attribute.id.id()), H5Sclose);
  const hssize_t values = H5Sget_simple_extent_npoints(space.id());
  if (values != 1) {
    fail<RuntimeError>("{}: {}: attribute '{}' holds {} values, expected 1", path_, object, name,
                       values);
  }
  attribute.type_class = H5Tget_class(attribute.type.id());
  return attribute;
}

std::int64_t File::int_attribute(const std::string& object, const std::string& name) const {
  const Attribute attribute = open_attribute(object, name);
  const std::string where = fmt::format("cannot read attribute '{}'", name);
  const bool is_boolean = attribute.type_class == H5T_ENUM && H5Tget_size(attribute.type.id()) == 1;
  if (is_boolean) {  // h5py stores True and False as an enumeration of one byte
    signed char value = 0;
    if (H5Aread(attribute.id.id(), attribute.type.id(), &value) < 0) fail_at(object, where);
    return value;
  }
  if (attribute.type_class != H5T_INTEGER) {
    fail<RuntimeError>("{}: {}: attribute '{}' is {}, expected an integer", path_, object, name,
                       describe_type(attribute.type.id()).text);
  }
  std::int64_t value = 0;
  if (H5Aread(attribute.id.id(), H5T_NATIVE_INT64, &value) < 0) fail_at(object, where);
  return value;
}

double File::double_attribute(const std::string& object, const std::string& name) const {
  const Attribute attribute = open_attribute(object, name);
  if (attribute.type_class != H5T_FLOAT && attribute.type_class != H5T_INTEGER) {
    fail<RuntimeError>("{}: {}: attribute '{}' is {}, expected a number", path_, object, name,
                       describe_type(attribute.type.id()).text);
  }
  double value = 0;
  if (H5Aread(attribute.id.id(), H5T_NATIVE_DOUBLE, &value) < 0) {
    fail_at(object, fmt::format("cannot read attribute '{}'", name));
  }
  return value;
}

std::string File::string_attribute(const std::string& object, const std::string& name) const {
  const Attribute attribute = open_attribute(object, name);
  if (attribute.type_class != H5T_STRING) {
    fail<RuntimeError>("{}: {}: attribute '{}' is {}, expected a string", path_, object, name,
                       describe_type(attribute.type.id()).text);
  }
  if (string_kind(attribute.type.id()) == StringKind::kDamaged) {
    fail<RuntimeError>("{}: {}: attribute '{}' has a damaged string type", path_, object, name);
  }
  return read_string(attribute.id.id(), attribute.type.id());
}

void File::write_attribute_raw(const std::string& object, const std::string& name,
                               const Handle& type, const void* value) {
  const Handle owner = open_object(object);
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(
      H5Acreate2(owner.id(), name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  if (!attribute || H5Awrite(attribute.id(), type.id(), value) < 0) {
    fail_at(object, fmt::format("cannot write attribute '{}'", name));
  }
}

void File::write_attribute(const std::string& object, const std::string& name, std::int64_t value) {
  write_attribute_raw(object, name, file_type(NumberType::kInt64), &value);
}

void File::write_attribute(const std::string& object, const std::string& name, double value) {
  write_attribute_raw(object, name, file_type(NumberType::kFloat64), &value);
}

void File::write_attribute(const std::string& object, const std::string& name,
                           const std::string& value) {
  const char* text = value.c_str();
  write_attribute_raw(object, name, file_type(NumberType::kString),
                      static_cast<const void*>(&text));
}

Dataset File::open_dataset(const std::string& object) const {
  if (!exists(object)) fail<RuntimeError>("{}: {}: dataset is missing", path_, object);
  if (H5Iget_type(open_object(object).id()) != H5I_DATASET) {
    fail<RuntimeError>("{}: {}: expected a dataset", path_, object);
  }
  Handle id(H5Dopen2(id_.id(), object.c_str(), H5P_DEFAULT), H5Dclose);
  if (!id) fail_at(object, "cannot open");
  return Dataset(path_, object, std::move(id));
}

Dataset File::create_dataset(const std::string& object, NumberType type, const Extent& extent,
                             const DatasetOptions& options) {
  constexpr std::int64_t kLeastChunkedBytes = 16 * 1024;  // a filter gains nothing below
  const Handle properties = object_properties(H5P_DATASET_CREATE);
  const std::int64_t element = std::max(hdf5::bytes_of(type), 1);
  if (options.compress && !extent.empty() && elements_of(extent) * element >= kLeastChunkedBytes) {
    H5Pset_chunk(properties.id(), static_cast<int>(extent.size()),
                 chunk_of(extent, element).data());
    H5Pset_shuffle(properties.id());
    H5Pset_deflate(properties.id(), 1);
  }
  const std::vector<hsize_t> dims(extent.begin(), extent.end());
  const Handle space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr),
                     H5Sclose);
  const Handle stored = file_type(type);
  Handle id(H5Dcreate2(id_.id(), object.c_str(), stored.id(), space.id(), H5P_DEFAULT,
                       properties.id(), H5P_DEFAULT),
            H5Dclose);
  if (!id) fail_at(object, "cannot create the dataset");
  return Dataset(path_, object, std::move(id));
}

void File::write_strings(const std::string& object, std::span<const std::string> values) {
  std::vector<const char*> texts;
  for (const std::string& value : values) texts.push_back(value.c_str());
  create_dataset(object, NumberType::kString, {static_cast<std::int64_t>(values.size())})
      .write_raw(std::as_bytes(std::span<const char* const>(texts)));
}

}  // namespace kvsim::hdf5
