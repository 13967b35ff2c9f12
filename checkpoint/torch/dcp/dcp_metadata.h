// SPDX-License-Identifier: Apache-2.0
//
// DcpMetadata: the .metadata file of a DCP directory (torch.distributed.checkpoint): which tensors there are, the
// chunks (boxes) they were saved as, and the slice of which file holds each. Pure: bytes in, table out; nothing is
// believed unchecked, and each tensor's chunks cover it exactly once.
#ifndef FSDP_CHECKPOINT_TORCH_DCP_DCP_METADATA_H_
#define FSDP_CHECKPOINT_TORCH_DCP_DCP_METADATA_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/tensor/box.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

inline constexpr char kDcpMetadataName[] = ".metadata";

// Bytes [offset, offset + nbytes) of a file of the directory: an archive that torch.save wrote.
struct DcpSlice {
  std::string file;
  int64_t offset = 0;
  int64_t nbytes = 0;
};

struct DcpChunk {
  Box box;
  DcpSlice slice;
};

struct DcpTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<DcpChunk> chunks;  // by box, row-major
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

struct DcpMetadata {
  std::vector<DcpEntry> entries;  // in the order of the state dict
  std::vector<DcpTensor> tensors;
};

// kInvalidArgument for what is refused (a global, a transform such as compression, an unknown dtype), by name;
// kDataLoss for what is damaged: it names the tensor and the first hole or overlap.
absl::StatusOr<DcpMetadata> ParseDcpMetadata(std::string_view bytes);

// OK when `boxes` cover `shape` exactly once, in a way that cuts one dimension after the other, as every mesh does.
// Sorts them row-major.
absl::Status CheckChunkCover(const Shape& shape, std::vector<DcpChunk>& chunks);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_DCP_DCP_METADATA_H_
