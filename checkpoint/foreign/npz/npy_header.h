// SPDX-License-Identifier: Apache-2.0
//
// The header of a .npy file, versions 1 to 3: the bytes that NumPy writes before the elements of an array.
//
//   "\x93NUMPY" | major | minor | length of the text, 2 bytes (version 1) or 4 | text, padded to a multiple of 64
//
// The text is a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (5, 7), }. It is read by its grammar
// and never evaluated. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_NPZ_NPY_HEADER_H_
#define FSDP_CHECKPOINT_FOREIGN_NPZ_NPY_HEADER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

// The number of bytes that determine a header's length, and the longest header that is read: for a tensor it has about
// a hundred bytes.
inline constexpr int64_t kNpyPreludeBytes = 12;
inline constexpr int64_t kMaxNpyHeaderBytes = 64 * 1024;

struct NpyHeader {
  std::string descr;  // "<f4"; the text of a structured type is left out
  Shape shape;
  bool fortran_order = false;  // the first index varies fastest
  bool is_swapped = false;     // big-endian elements of more than one byte
  int64_t nbytes = 0;          // of the header: the elements begin there

  // The dtype of the elements; nullopt for an array that is not a tensor: texts, dates, Python objects (a pickle, which
  // is never read), structures, and types that the file does not name. ml_dtypes writes bfloat16 as "<V2", its only
  // type of two bytes, and all float8 types as "V1", which does not distinguish them.
  std::optional<DType> dtype;

  // The reason why dtype is nullopt, for messages: "Python objects, which are a pickle".
  std::string why;
};

// The size of the header that begins with `prelude`, which has at least kNpyPreludeBytes. kDataLoss if it is not a .npy
// file, kInvalidArgument for a later version, kResourceExhausted beyond kMaxNpyHeaderBytes.
absl::StatusOr<int64_t> NpyHeaderBytes(std::string_view prelude);

// Parses a whole header of NpyHeaderBytes. kDataLoss states what is wrong with it.
absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view bytes);

// The version 1 header that NumPy writes for such an array in C order. kInvalidArgument for a dtype that NumPy's files
// cannot name.
absl::StatusOr<std::string> EncodeNpyHeader(DType dtype, const Shape& shape);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_NPZ_NPY_HEADER_H_
