// SPDX-License-Identifier: Apache-2.0
//
// OnnxType: the element types of ONNX, how they are stored and as what they are read: types of less than a byte are
// packed, the first element in the lowest bits, and read as int8 and uint8; float4 stays packed. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_TYPE_H_
#define FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

struct OnnxType {
  int id = 0;                       // TensorProto.DataType
  std::string_view name;            // ONNX's: "FLOAT8E4M3FN"
  int bits = 0;                     // of an element as it is stored
  std::optional<DType> dtype = {};  // as it is read; nullopt: no tensor (STRING)

  // The field of TensorProto for elements that are not in raw_data: 4 float_data, 5 int32_data, 7 int64_data,
  // 10 double_data, 11 uint64_data. A number of it holds this many bytes of elements: 1 of int32_data for UINT8.
  int field = 0;
  int unit_bytes = 0;
  bool is_signed = false;

  bool is_expanded() const { return bits < 8 && dtype && !IsPacked(*dtype); }
};

// Null if there is no such type.
const OnnxType* FindOnnxType(int id);

// Elements `first` to `first + count` of a row of packed ones of 2 or 4 bits, which `bytes` begins with, as int8 or
// uint8.
void ExpandOnnxElements(const OnnxType& type, const std::byte* bytes, int64_t first, int64_t count, std::byte* out);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_TYPE_H_
