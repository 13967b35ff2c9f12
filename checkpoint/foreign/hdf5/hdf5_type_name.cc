// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/hdf5/hdf5_type_name.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/hdf5/hdf5_library.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {
namespace {

bool IsEqual(hid_t type, hid_t other) { return H5Tequal(type, other) > 0; }

// A little-endian float of 2 bytes with a sign, `exponent_bits` and the rest for the mantissa. Compares the fields of
// the type, because HDF5 calls committed types and other spellings of bfloat16 unequal to ours.
bool IsFloatOf16Bits(hid_t type, size_t exponent_bits) {
  size_t sign = 0;
  size_t exponent = 0;
  size_t exponent_size = 0;
  size_t mantissa = 0;
  size_t mantissa_size = 0;
  return H5Tget_size(type) == 2 && H5Tget_order(type) == H5T_ORDER_LE &&
         H5Tget_ebias(type) == (size_t{1} << (exponent_bits - 1)) - 1 &&
         H5Tget_fields(type, &sign, &exponent, &exponent_size, &mantissa, &mantissa_size) >= 0 && sign == 15 &&
         exponent == 15 - exponent_bits && exponent_size == exponent_bits && mantissa == 0 && mantissa_size == exponent;
}

std::optional<DType> IntegerType(hid_t type) {
  const std::pair<hid_t, DType> known[] = {
      {H5T_STD_I64LE, DType::kInt64},  {H5T_STD_I32LE, DType::kInt32},  {H5T_STD_I16LE, DType::kInt16},
      {H5T_STD_I8LE, DType::kInt8},    {H5T_STD_U64LE, DType::kUInt64}, {H5T_STD_U32LE, DType::kUInt32},
      {H5T_STD_U16LE, DType::kUInt16}, {H5T_STD_U8LE, DType::kUInt8},
  };
  for (const auto& [other, dtype] : known) {
    if (IsEqual(type, other)) return dtype;
  }
  return std::nullopt;
}

// A member of a compound; it calls Hdf5TypeName, which calls it: a complex number is a compound of floats.
bool IsMember(hid_t type, unsigned index, const char* name, size_t offset, DType dtype);

// The compound for the complex type `dtype`, as hdf5_file.cc creates it.
bool IsComplexType(hid_t type, DType dtype) {
  const auto size = static_cast<size_t>(SizeOf(dtype));
  const auto [real, imaginary] = ComplexFieldsOf(dtype);
  return H5Tget_size(type) == size && H5Tget_nmembers(type) == 2 && IsMember(type, 0, real, 0, PartOf(dtype)) &&
         IsMember(type, 1, imaginary, size / 2, PartOf(dtype));
}

std::string ComplexTypeName(hid_t type) {
  for (const DType dtype : {DType::kComplex32, DType::kComplex64, DType::kComplex128}) {
    if (IsComplexType(type, dtype)) return std::string(DTypeName(dtype));
  }
  return "";
}

bool IsMember(hid_t type, unsigned index, const char* name, size_t offset, DType dtype) {
  char* const found = H5Tget_member_name(type, index);
  const bool is_named = found != nullptr && std::strcmp(found, name) == 0;
  if (found != nullptr) H5free_memory(found);
  const Hdf5Handle member(H5Tget_member_type(type, index), H5Tclose);
  return is_named && member.ok() && H5Tget_member_offset(type, index) == offset &&
         Hdf5TypeName(member.get(), "") == DTypeName(dtype);
}

}  // namespace

bool IsHdf5Bool(hid_t type) {
  char first[8] = {};
  char second[8] = {};
  const int8_t zero = 0;
  const int8_t one = 1;
  return H5Tget_size(type) == 1 && H5Tget_nmembers(type) == 2 &&
         H5Tenum_nameof(type, &zero, first, sizeof(first)) >= 0 && std::strcmp(first, "FALSE") == 0 &&
         H5Tenum_nameof(type, &one, second, sizeof(second)) >= 0 && std::strcmp(second, "TRUE") == 0;
}

std::string Hdf5TypeName(hid_t type, const std::string& named) {
  switch (H5Tget_class(type)) {
    case H5T_STRING:
      return H5Tis_variable_str(type) == 0 ? "text" : "";
    case H5T_FLOAT:
      if (IsEqual(type, H5T_IEEE_F64LE)) return "float64";
      if (IsEqual(type, H5T_IEEE_F32LE)) return "float32";
      if (IsFloatOf16Bits(type, /*exponent_bits=*/8)) return "bfloat16";
      return IsFloatOf16Bits(type, /*exponent_bits=*/5) ? "float16" : "";
    case H5T_INTEGER: {
      const std::optional<DType> dtype = IntegerType(type);
      if (!dtype) return "";
      const absl::StatusOr<DType> other = ParseDType(named);
      const bool is_float =
          *dtype == DType::kUInt8 && other.ok() && SizeOf(*other) == 1 && (IsFloatingPoint(*other) || IsPacked(*other));
      return is_float ? named : std::string(DTypeName(*dtype));
    }
    case H5T_ENUM:
      return IsHdf5Bool(type) ? "bool" : "";
    case H5T_COMPOUND:
      return ComplexTypeName(type);
    case H5T_OPAQUE:  // as Keras writes it
      return named == "bfloat16" && H5Tget_size(type) == 2 ? named : "";
    default:
      return "";
  }
}

}  // namespace fsdp
