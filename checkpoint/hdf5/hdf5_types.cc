// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/hdf5/hdf5_types.h"

#include <hdf5.h>

#include <cstddef>
#include <utility>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

using Handle = Hdf5Handle;

// bfloat16: the upper half of an IEEE float32, in the fields that HDF5 2.0 gives its predefined type.
Handle BFloat16Type() {
  Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  const bool made = type.ok() && H5Tset_fields(type.get(), 15, 7, 8, 0, 7) >= 0 && H5Tset_size(type.get(), 2) >= 0 &&
                    H5Tset_ebias(type.get(), 127) >= 0;
  return made ? std::move(type) : Handle();
}

// The enumeration {FALSE, TRUE} of int8, which h5py shows as bool.
Handle BoolType() {
  Handle type(H5Tenum_create(H5T_STD_I8LE), H5Tclose);
  const int8_t no = 0;
  const int8_t yes = 1;
  const bool made =
      type.ok() && H5Tenum_insert(type.get(), "FALSE", &no) >= 0 && H5Tenum_insert(type.get(), "TRUE", &yes) >= 0;
  return made ? std::move(type) : Handle();
}

// A compound of two floats; HDF5 before 2.0 has no complex type.
Handle ComplexType(DType dtype) {
  const auto size = static_cast<size_t>(SizeOf(dtype));
  const Handle part = Hdf5TypeOf(PartOf(dtype));
  const auto [real, imaginary] = ComplexFieldsOf(dtype);
  Handle type(H5Tcreate(H5T_COMPOUND, size), H5Tclose);
  const bool made = part.ok() && type.ok() && H5Tinsert(type.get(), real, 0, part.get()) >= 0 &&
                    H5Tinsert(type.get(), imaginary, size / 2, part.get()) >= 0;
  return made ? std::move(type) : Handle();
}

}  // namespace

Hdf5Handle Hdf5TypeOf(DType dtype) {
  const auto standard = [](hid_t type) { return Handle(H5Tcopy(type), H5Tclose); };
  switch (dtype) {
    case DType::kFloat64:
      return standard(H5T_IEEE_F64LE);
    case DType::kFloat32:
      return standard(H5T_IEEE_F32LE);
    case DType::kBFloat16:
      return BFloat16Type();
    case DType::kFloat16: {
      Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
      const bool made = type.ok() && H5Tset_fields(type.get(), 15, 10, 5, 0, 10) >= 0 &&
                        H5Tset_size(type.get(), 2) >= 0 && H5Tset_ebias(type.get(), 15) >= 0;
      return made ? std::move(type) : Handle();
    }
    // HDF5 interprets exponent 15 of e4m3fn as infinity, so the bytes are stored as integers with the dtype in an
    // attribute.
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0FNU:
    case DType::kFloat4E2M1FNx2:
    case DType::kUInt8:
      return standard(H5T_STD_U8LE);
    case DType::kInt64:
      return standard(H5T_STD_I64LE);
    case DType::kInt32:
      return standard(H5T_STD_I32LE);
    case DType::kInt16:
      return standard(H5T_STD_I16LE);
    case DType::kInt8:
      return standard(H5T_STD_I8LE);
    case DType::kUInt64:
      return standard(H5T_STD_U64LE);
    case DType::kUInt32:
      return standard(H5T_STD_U32LE);
    case DType::kUInt16:
      return standard(H5T_STD_U16LE);
    case DType::kBool:
      return BoolType();
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
      return ComplexType(dtype);
  }
  CheckFailed("not a DType", __FILE__, __LINE__);
}

Hdf5Handle Hdf5TextType(int64_t nbytes) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  const bool made = type.ok() && H5Tset_size(type.get(), nbytes < 1 ? 1 : nbytes) >= 0 &&
                    H5Tset_strpad(type.get(), H5T_STR_NULLPAD) >= 0 && H5Tset_cset(type.get(), H5T_CSET_UTF8) >= 0;
  return made ? std::move(type) : Handle();
}

}  // namespace fsdp
