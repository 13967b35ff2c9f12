// SPDX-License-Identifier: Apache-2.0
//
// OnnxTensor: a TensorProto of ONNX: name, type, shape, and where its elements are:
//
//   raw_data            little-endian, in the model's file
//   float_data, ...     packed numbers of a fixed size, in the same way; or varints (varint_values.h)
//   external_data       a range of another file, in the directory of the model
#ifndef FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_TENSOR_H_
#define FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_TENSOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/onnx/onnx_type.h"
#include "fsdp/checkpoint/foreign/onnx/protobuf_cursor.h"
#include "fsdp/checkpoint/foreign/onnx/varint_values.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// external_data, as the file states it.
struct OnnxExternalData {
  std::string location;  // a path relative to the directory of the model
  int64_t offset = 0;
  std::optional<int64_t> length = {};  // nullopt: to the end of the file
  bool has_checksum = false;           // SHA-1 of the file
};

struct OnnxTensor {
  std::string name;
  const OnnxType* type = nullptr;
  Shape shape;                    // of elements, as ONNX counts them
  std::string why_not;            // the reason why it is not read: "texts"; empty if it is
  std::vector<ByteRange> ranges;  // of the model's file, or one of the external file, when it is opened
  VarintValues varints;
  std::optional<OnnxExternalData> external;

  bool has_varints() const { return varints.count() > 0; }
  int64_t nbytes() const;    // of the elements as they are stored, in ranges
  Shape read_shape() const;  // as it is read: a float4 is two numbers
};

// Reads the TensorProto that ends at `end`. kDataLoss states what contradicts the type and the shape, or what is there
// twice; kInvalidArgument a type that this release does not know.
absl::StatusOr<OnnxTensor> ReadOnnxTensor(ProtobufCursor& cursor, int64_t end);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_TENSOR_H_
