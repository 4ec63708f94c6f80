#include <algorithm>
#include <array>
#include <limits>

#include "core/error.h"
#include "core/hdf5.h"

namespace kvsim::hdf5 {
namespace {

/// Where sign, exponent and mantissa of a float type lie, in bits.
struct FloatFields {
  std::size_t size = 0;
  std::size_t sign = 0;
  std::size_t exponent = 0;
  std::size_t exponent_bits = 0;
  std::size_t mantissa = 0;
  std::size_t mantissa_bits = 0;
  std::size_t bias = 0;

  bool operator==(const FloatFields&) const = default;
};

struct NamedFields {
  NumberType type{};
  const char* name = "";
  FloatFields fields{};
};

constexpr std::array<NamedFields, 4> kFloats{{
    {NumberType::kFloat16, "float16", {2, 15, 10, 5, 0, 10, 15}},
    {NumberType::kBfloat16, "bfloat16", {2, 15, 7, 8, 0, 7, 127}},
    {NumberType::kFloat32, "float32", {4, 31, 23, 8, 0, 23, 127}},
    {NumberType::kFloat64, "float64", {8, 63, 52, 11, 0, 52, 1023}},
}};

FloatFields fields_of(hid_t type) {
  FloatFields fields;
  fields.size = H5Tget_size(type);
  H5Tget_fields(type, &fields.sign, &fields.exponent, &fields.exponent_bits, &fields.mantissa,
                &fields.mantissa_bits);
  fields.bias = H5Tget_ebias(type);
  return fields;
}

/// HDF5 demands this order: the fields first, then precision and size.
Handle make_16bit_float(const FloatFields& fields) {
  Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  const bool made = type &&
                    H5Tset_fields(type.id(), fields.sign, fields.exponent, fields.exponent_bits,
                                  fields.mantissa, fields.mantissa_bits) >= 0 &&
                    H5Tset_precision(type.id(), 16) >= 0 && H5Tset_size(type.id(), 2) >= 0 &&
                    H5Tset_ebias(type.id(), fields.bias) >= 0;
  KVSIM_CHECK(made);
  return type;
}

Handle make_string_type() {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  const bool made = type && H5Tset_size(type.id(), H5T_VARIABLE) >= 0 &&
                    H5Tset_cset(type.id(), H5T_CSET_UTF8) >= 0;
  KVSIM_CHECK(made);
  return type;
}

TypeDescription describe_float(hid_t type) {
  const FloatFields fields = fields_of(type);
  const bool little = H5Tget_order(type) == H5T_ORDER_LE;
  for (const NamedFields& known : kFloats) {
    if (known.fields != fields) continue;
    if (little) return {known.type, known.name};
    return {NumberType::kOther, fmt::format("big-endian {}", known.name)};
  }
  return {NumberType::kOther,
          fmt::format("a float of {} bytes with {} exponent and {} mantissa bits", fields.size,
                      fields.exponent_bits, fields.mantissa_bits)};
}

TypeDescription describe_integer(hid_t type) {
  const std::size_t size = H5Tget_size(type);
  const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
  const bool little = H5Tget_order(type) == H5T_ORDER_LE;
  const std::string text =
      fmt::format("{}{}int{}", little ? "" : "big-endian ", is_signed ? "" : "u", 8 * size);
  if (little && is_signed && size == 4) return {NumberType::kInt32, text};
  if (little && is_signed && size == 8) return {NumberType::kInt64, text};
  return {NumberType::kOther, text};
}

}  // namespace

TypeDescription describe_type(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      return describe_float(type);
    case H5T_INTEGER:
      return describe_integer(type);
    case H5T_STRING:
      return {NumberType::kString, "a string"};
    case H5T_ENUM:
      return {NumberType::kOther, "an enumeration"};
    case H5T_COMPOUND:
      return {NumberType::kOther, "a compound"};
    default:
      return {NumberType::kOther, "of a class other than number or string"};
  }
}

StringKind string_kind(hid_t type) {
  if (H5Tis_variable_str(type) <= 0) return StringKind::kFixed;
  const Handle character(H5Tget_super(type), H5Tclose);
  return H5Tget_size(character.id()) == 1 ? StringKind::kVariable : StringKind::kDamaged;
}

Handle file_type(NumberType type) {
  switch (type) {
    case NumberType::kFloat16:
    case NumberType::kBfloat16:
      return make_16bit_float(kFloats[type == NumberType::kFloat16 ? 0 : 1].fields);
    case NumberType::kFloat32:
      return Handle(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    case NumberType::kFloat64:
      return Handle(H5Tcopy(H5T_IEEE_F64LE), H5Tclose);
    case NumberType::kInt32:
      return Handle(H5Tcopy(H5T_STD_I32LE), H5Tclose);
    case NumberType::kInt64:
      return Handle(H5Tcopy(H5T_STD_I64LE), H5Tclose);
    case NumberType::kString:
      return make_string_type();
    case NumberType::kOther:
      break;
  }
  fail<RuntimeError>("internal error: no HDF5 type for NumberType::kOther");
}

int bytes_of(NumberType type) {
  switch (type) {
    case NumberType::kFloat16:
    case NumberType::kBfloat16:
      return 2;
    case NumberType::kFloat32:
    case NumberType::kInt32:
      return 4;
    case NumberType::kFloat64:
    case NumberType::kInt64:
      return 8;
    case NumberType::kString:
    case NumberType::kOther:
      break;
  }
  return 0;
}

std::int64_t elements_of(const Extent& extent) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (std::find(extent.begin(), extent.end(), 0) != extent.end()) return 0;
  std::int64_t product = 1;
  for (const std::int64_t size : extent) {
    if (size < 0 || product > kMost / size) return kMost;
    product *= size;
  }
  return product;
}

std::string to_string(const Extent& extent) {
  return extent.empty() ? "a scalar" : fmt::format("[{}]", fmt::join(extent, ", "));
}

}  // namespace kvsim::hdf5
