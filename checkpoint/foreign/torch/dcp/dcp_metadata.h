// SPDX-License-Identifier: Apache-2.0
//
// DcpMetadata: the .metadata file of a DCP directory (torch.distributed.checkpoint): the tensors, the chunks (boxes) as
// which they were saved, and the slice of a file that holds each chunk. Pure: bytes in, table out. Every number is
// checked, and each tensor's chunks cover it exactly once.
//
//   .metadata                                               __RANK_0.distcp
//   "model.w" -> tensor [6, 4]   box [0:3, 0:4] ----------> bytes [64, 1200): an archive of torch.save with one tensor
//                                box [3:6, 0:4] ----------> the same in the file of another rank
//   "step"    -> value           -------------------------> bytes of an archive with one plain value
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_METADATA_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_METADATA_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_chunks.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

inline constexpr char kDcpMetadataName[] = ".metadata";

// The chunks cover the tensor exactly once, and are not empty unless the tensor is.
struct DcpTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  // Chunks [first_chunk, end_chunk) of DcpMetadata::chunks, sorted by the start of their box.
  uint32_t first_chunk = 0;
  uint32_t end_chunk = 0;
};

// An entry of the flat state dict that DCP saves, and its path in the program's nested state dict.
class DcpEntry {
 public:
  struct PathElement {
    std::string name;
    bool is_index = false;  // into a list
  };
  using Path = std::vector<PathElement>;

  // A tensor, by its number in DcpMetadata::tensors, or a pickled value, by the number of its archive among the slices
  // of DcpMetadata::chunks.
  static DcpEntry OfTensor(std::string name, const Path& path, uint32_t tensor) {
    return {std::move(name), path, tensor, true};
  }
  static DcpEntry OfValue(std::string name, const Path& path, uint32_t slice) {
    return {std::move(name), path, slice, false};
  }

  const std::string& name() const { return name_; }
  Path path() const;
  bool is_tensor() const { return is_tensor_; }
  uint32_t tensor() const { return number_; }  // Precondition: is_tensor()
  uint32_t slice() const { return number_; }   // Precondition: not is_tensor()

 private:
  DcpEntry(std::string name, const Path& path, uint32_t number, bool is_tensor);

  std::string name_;
  // The elements joined by dots; empty if that equals the name, as in torch's own names.
  std::string joined_;
  // Twice the end of each element in the joined text, plus one for an index.
  absl::InlinedVector<uint32_t, 4> ends_;
  uint32_t number_;
  bool is_tensor_;
};

// All parts of .metadata that reading needs.
struct DcpMetadata {
  std::vector<DcpEntry> entries;  // in the order of the state dict
  std::deque<DcpTensor> tensors;
  DcpChunks chunks;
  int plans = 0;  // ranks whose plans Megatron-Core has put in, with those that wrote nothing; 0: no plans
};

// Parses the bytes of .metadata. kResourceExhausted beyond PickleMemoryLimit. kInvalidArgument names an unsupported
// feature: a global, a transform such as compression, an unknown dtype. kDataLoss names the tensor and the first hole
// or overlap of its chunks, or the byte of the pickle. n chunks take n log n time.
absl::StatusOr<DcpMetadata> ParseDcpMetadata(std::string_view bytes);

// A box, by views of its numbers, and a number of the caller's.
struct DcpBox {
  absl::Span<const int64_t> start;
  absl::Span<const int64_t> count;
  uint32_t number = 0;
};

// Sorts `boxes` by their start, drops copies of a box, and returns OK if they cover `shape` exactly once. Covers must
// result from cutting one dimension after the other, as every device mesh does; others are kDataLoss.
absl::Status CheckChunkCover(const Shape& shape, std::vector<DcpBox>& boxes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_METADATA_H_
