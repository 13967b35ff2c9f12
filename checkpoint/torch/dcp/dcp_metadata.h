// SPDX-License-Identifier: Apache-2.0
//
// DcpMetadata: the .metadata file of a DCP directory (torch.distributed.checkpoint): the tensors, the chunks (boxes)
// that they were saved as, and the slice of a file that holds each chunk. Pure: bytes in, table out. Every number is
// checked, and each tensor's chunks cover it exactly once.
//
//   .metadata                                               __RANK_0.distcp
//   "model.w" -> tensor [6, 4]   box [0:3, 0:4] ----------> bytes [64, 1200): an archive of torch.save with one tensor
//                                box [3:6, 0:4] ----------> the same in the file of another rank
//   "step"    -> value           -------------------------> bytes of an archive with one plain value
#ifndef FSDP_CHECKPOINT_TORCH_DCP_DCP_METADATA_H_
#define FSDP_CHECKPOINT_TORCH_DCP_DCP_METADATA_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/torch/pickle/pickle.h"
#include "fsdp/tensor/box.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

inline constexpr char kDcpMetadataName[] = ".metadata";

// Bytes [offset, offset + nbytes) of a file of the directory: an archive that torch.save wrote. `file` is a plain name:
// it cannot lead out of the directory. end() does not overflow; the length of the file is checked when it is read.
struct DcpSlice {
  std::string file;
  int64_t offset = 0;
  int64_t nbytes = 0;

  int64_t end() const { return offset + nbytes; }
};

// A part of a tensor, and the archive that holds it.
struct DcpChunk {
  Box box;
  DcpSlice slice;
};

// The chunks cover the tensor exactly once, and are not empty unless the tensor is.
struct DcpTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<DcpChunk> chunks;  // sorted by the start of their box
};

// An entry of the flat state dict that DCP saves, and its path in the nested state dict that the program had.
struct DcpEntry {
  struct PathElement {
    std::string name;
    bool is_index = false;  // into a list
  };
  std::string name;
  std::vector<PathElement> path;
  std::variant<int, DcpSlice> content;  // the index of a tensor, or the archive of a pickled value

  // Null for a value.
  const int* tensor() const { return std::get_if<int>(&content); }
};

// All of .metadata that reading needs; DcpEntry::tensor() is an index into `tensors`.
struct DcpMetadata {
  std::vector<DcpEntry> entries;  // in the order of the state dict
  std::vector<DcpTensor> tensors;
};

// What parsing a .metadata of `nbytes` bytes may cost in memory, those bytes included. A chunk has about 140 bytes of
// pickle and costs about 800, of values, memo and boxes, and there is one for each tensor and rank: the limit of other
// pickles (PickleMemoryLimit), 2 bytes for one, would refuse a model of 8B parameters from 256 ranks, whose .metadata
// of 31 MB takes 176 MB.
inline constexpr int64_t kDcpMemoryPerByte = 8;
inline constexpr int64_t DcpMemoryLimit(int64_t nbytes) { return kDcpMemoryPerByte * nbytes + kPickleAllowance; }

// Parses the bytes of .metadata. kResourceExhausted beyond DcpMemoryLimit. kInvalidArgument names what is refused: a
// global, a transform such as compression, an unknown dtype. kDataLoss names the tensor and the first hole or overlap
// of its chunks, or the byte of the pickle. n chunks take n log n time.
absl::StatusOr<DcpMetadata> ParseDcpMetadata(std::string_view bytes);

// Sorts `chunks` by the start of their box, drops copies of a box, and returns OK if they cover `shape` exactly once.
// Covers must be made by cutting one dimension after the other, as every device mesh cuts; others are kDataLoss.
absl::Status CheckChunkCover(const Shape& shape, std::vector<DcpChunk>& chunks);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_DCP_DCP_METADATA_H_
