#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// HDF5 behind small RAII types. Every failure is a RuntimeError that names the file, the object
/// and HDF5's own reason; HDF5 itself prints nothing. Objects are named by absolute paths
/// ("/layers/0/k"). The library is not thread-safe: use one thread per process for files.
namespace kvsim::hdf5 {

/// HDF5's own innermost reason for the call that failed last, "" if it gave none.
std::string last_reason();

/// Owns an HDF5 identifier.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Handle() = default;
  Handle(hid_t id, Close closer) : id_(id), close_(closer) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }

  hid_t id() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Closes now; false when that fails (a delayed write may).
  bool close() { return id_ < 0 || close_(std::exchange(id_, H5I_INVALID_HID)) >= 0; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// The element types this program reads and writes, all little-endian. bfloat16 and float16 are
/// HDF5 floats of 16 bits, so that h5py reads 1.0 as 1.0.
enum class NumberType { kFloat16, kBfloat16, kFloat32, kFloat64, kInt32, kInt64, kString, kOther };

template <typename T>
constexpr NumberType kNumberType = NumberType::kOther;
template <>
inline constexpr NumberType kNumberType<float> = NumberType::kFloat32;
template <>
inline constexpr NumberType kNumberType<double> = NumberType::kFloat64;
template <>
inline constexpr NumberType kNumberType<std::int32_t> = NumberType::kInt32;
template <>
inline constexpr NumberType kNumberType<std::int64_t> = NumberType::kInt64;

/// How the strings of a type are stored. kDamaged: variable, but with characters of several bytes,
/// for which the library would take memory without bound.
enum class StringKind { kFixed, kVariable, kDamaged };
StringKind string_kind(hid_t type);

/// The file type of a number type (not kOther).
Handle file_type(NumberType type);
/// Bytes of one element; 0 for kString and kOther.
int bytes_of(NumberType type);

/// What an HDF5 type is; `text` is for messages ("bfloat16", "big-endian float32", "uint16").
struct TypeDescription {
  NumberType type = NumberType::kOther;
  std::string text;
};
TypeDescription describe_type(hid_t type);

using Extent = std::vector<std::int64_t>;

/// Product of the dimensions, saturated at INT64_MAX.
std::int64_t elements_of(const Extent& extent);
/// "[3, 2064, 64]", or "a scalar".
std::string to_string(const Extent& extent);

struct DatasetOptions {
  bool compress = false;  // shuffle and gzip 1, in chunks of at most 512 KiB; else contiguous
};

/// A dataset of an open file; it keeps the file open.
class Dataset {
 public:
  Dataset(std::string file, std::string name, Handle id);

  const std::string& name() const { return name_; }
  const Extent& extent() const { return extent_; }
  NumberType type() const { return description_.type; }
  const std::string& type_text() const { return description_.text; }
  /// Bytes of all elements in memory; throws if that is more than the file can hold, so that a
  /// damaged extent never leads to a huge allocation.
  std::int64_t checked_bytes() const;

  /// Reads or writes bits in the file's own type, without any conversion. The box version works on
  /// the elements [offset, offset + count) of every dimension.
  void read_raw(std::span<std::byte> out) const;
  void read_raw(const Extent& offset, const Extent& count, std::span<std::byte> out) const;
  void write_raw(std::span<const std::byte> data);
  void write_raw(const Extent& offset, const Extent& count, std::span<const std::byte> data);

  /// All elements, converted by HDF5 (exact between the types above where the value fits); for
  /// small data. `T` is float, double, int32_t or int64_t.
  template <typename T>
  std::vector<T> read() const {
    checked_bytes();
    std::vector<T> values(static_cast<std::size_t>(elements_of(extent_)));
    read_as(kNumberType<T>, values.data());
    return values;
  }
  std::vector<std::string> read_strings() const;

 private:
  [[noreturn]] void fail_with(const std::string& what) const;
  void read_as(NumberType type, void* out) const;
  Handle select(const Extent& offset, const Extent& count) const;

  std::string file_;
  std::string name_;
  Handle id_;
  Handle type_id_;
  Extent extent_;
  TypeDescription description_;
};

class File {
 public:
  /// Opens for reading.
  static File open(const std::string& path);
  /// Creates or empties `path`. Messages name `shown` (the target, where `path` is a temporary).
  static File create(const std::string& path, const std::string& shown);

  const std::string& path() const { return path_; }

  bool exists(const std::string& object) const;
  bool is_group(const std::string& object) const;
  /// Names directly below a group, in the order of their bytes.
  std::vector<std::string> children(const std::string& group) const;
  /// Creates a group and those above it that are missing.
  void create_group(const std::string& group);

  bool has_attribute(const std::string& object, const std::string& name) const;
  /// An attribute of one value: any integer or boolean; any integer or float; any string.
  std::int64_t int_attribute(const std::string& object, const std::string& name) const;
  double double_attribute(const std::string& object, const std::string& name) const;
  std::string string_attribute(const std::string& object, const std::string& name) const;
  /// Stored as int64, float64 and UTF-8 of variable length.
  void write_attribute(const std::string& object, const std::string& name, std::int64_t value);
  void write_attribute(const std::string& object, const std::string& name, double value);
  void write_attribute(const std::string& object, const std::string& name,
                       const std::string& value);

  Dataset open_dataset(const std::string& object) const;
  Dataset create_dataset(const std::string& object, NumberType type, const Extent& extent,
                         const DatasetOptions& options = {});
  /// A whole dataset at once; `T` is float, double, int32_t or int64_t.
  template <typename T>
  void write(const std::string& object, std::span<const T> values, const Extent& extent,
             const DatasetOptions& options = {}) {
    create_dataset(object, kNumberType<T>, extent, options).write_raw(std::as_bytes(values));
  }
  void write_strings(const std::string& object, std::span<const std::string> values);

  /// Closes and throws RuntimeError if what was written did not reach the file.
  void close();

 private:
  File(std::string path, Handle id);
  [[noreturn]] void fail_at(const std::string& object, const std::string& what) const;
  Handle open_object(const std::string& object) const;
  struct Attribute;
  Attribute open_attribute(const std::string& object, const std::string& name) const;
  void write_attribute_raw(const std::string& object, const std::string& name, const Handle& type,
                           const void* value);

  std::string path_;
  Handle id_;
};

/// Opens a file for reading after a child process has done the same and run `visit` on it: the
/// library crashes on some damaged files (1.10 does not check all lengths), and this turns that
/// into a RuntimeError. Errors of `visit` are left to whoever reads the file next.
File open_probed(const std::string& path, const std::function<void(const File&)>& visit);

}  // namespace kvsim::hdf5
