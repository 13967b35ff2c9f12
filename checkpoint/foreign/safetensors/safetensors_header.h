// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsHeader: the names, dtypes, shapes and places of the tensors of a safetensors file. The file is
//
//   u64, little-endian: N | N bytes of JSON | payload
//   JSON: {"__metadata__": {string: string}, NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]},
//   ...}
//
// Pure: text in, entries out, no I/O. Every number in a header is checked: entries cover the payload exactly, without
// holes or overlap, and each has as many bytes as its dtype and shape require.
#ifndef FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_HEADER_H_
#define FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// The reference library's limit on N: it could write a larger file, but never read it.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// True if a file that begins with `head` can be one: N is within the limit, and what follows it opens JSON. As N, the
// first bytes of ONNX, GGUF, MessagePack and HDF5 are a larger number, whatever their ninth byte is.
bool IsSafetensorsHead(std::string_view head);

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  int64_t begin = 0;  // bytes, from the start of the payload
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> entries;  // by begin; they cover the payload exactly
};

// Parses the N bytes of JSON of a file whose payload has `payload_bytes` bytes. kDataLoss names the tensor and the
// broken rule; kInvalidArgument a dtype that this project does not support, by name. Linear in the size of `json`,
// whatever its contents.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t payload_bytes);

// Puts `entries` in the order of the reference library (descending alignment of the dtype, then name, so that every
// tensor is aligned without padding) and gives them their offsets.
void PlaceSafetensorsEntries(std::vector<SafetensorsEntry>& entries);

// The bytes of the file before the payload: N and the JSON, padded with spaces so that the payload begins at a multiple
// of 8. `header.entries` must have their offsets. kInvalidArgument for a name that the format cannot hold (duplicate,
// "__metadata__", not UTF-8) or more than kMaxSafetensorsHeaderBytes.
absl::StatusOr<std::string> EncodeSafetensorsHeader(const SafetensorsHeader& header);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_HEADER_H_
