// SPDX-License-Identifier: Apache-2.0
//
// DTensor: which part of a tensor a rank has, as torch.distributed.tensor describes it: a mesh of ranks, and for each
// dimension of the mesh how the tensor is divided along it. torch.save of an FSDP2 rank writes such parts, and so do
// the libraries that save a file of each rank.
//
//   mesh [[0, 1], [2, 3]], placements (Shard(0), Shard(1)), shape [6, 8]:
//
//             columns 0..3   columns 4..7        Shard(d) over n ranks: parts of ceil(size / n) along dimension d,
//   rows 0..2    rank 0         rank 1           the last ones shorter or empty (torch.chunk)
//   rows 3..5    rank 2         rank 3           Replicate: every rank along it has the same
//
// Several placements may cut one dimension: Shards from left to right, each the parts of those before it. A
// _StridedShard (FSDP over tensor parallelism) comes after the Shard to the right of it, whose number of parts is its
// split_factor. Pure arithmetic; every number is checked by CheckDTensor.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DTENSOR_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DTENSOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "fsdp/tensor/box.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// Ranks as an array, row-major.
struct StoredMesh {
  std::vector<int64_t> shape;
  std::vector<int32_t> ranks;
  std::vector<std::string> names;  // one for each dimension, or none
  int64_t place = -1;              // in `ranks`, of the rank that wrote this; -1: it does not say

  // "[0, 1, 2, 3] as dp 2, tp 2"; only the first ranks of many.
  std::string ToString() const;
};

struct DTensorPlacement {
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard };

  Kind kind = Kind::kReplicate;
  int32_t dim = 0;           // of the tensor; unused for kReplicate
  int64_t split_factor = 1;  // of kStridedShard

  bool operator==(const DTensorPlacement& other) const;
  // "Shard(0)".
  std::string ToString() const;
};

struct DTensor {
  DType dtype = DType::kFloat32;
  Shape shape;                                          // of the whole tensor
  std::shared_ptr<const StoredMesh> mesh;               // never null
  absl::InlinedVector<DTensorPlacement, 2> placements;  // one for each dimension of the mesh

  // True if every rank of the mesh has the whole tensor.
  bool is_whole() const;

  // "(Shard(0), Shard(1)) over the ranks [0, 1, 2, 3] as dp 2, tp 2".
  std::string ToString() const;
};

// The mesh has at most this many ranks.
inline constexpr int64_t kMaxMeshRanks = int64_t{1} << 20;

// OK if BoxOf is defined: a mesh with as many different ranks as its shape says, and placements that cut dimensions of
// the tensor in an order that is known. Otherwise kDataLoss, or kInvalidArgument for an order that is not known.
absl::Status CheckMesh(const StoredMesh& mesh);
absl::Status CheckDTensor(const DTensor& tensor);

// The elements that the rank at `place` of the mesh has. Precondition: CheckDTensor is OK.
Box BoxOf(const DTensor& tensor, int64_t place);

// True for the first of the ranks that have the same elements. The first copies together are the tensor once.
bool IsFirstCopy(const DTensor& tensor, int64_t place);

// The place of the first of the ranks with the elements of `place`.
int64_t FirstCopyOf(const DTensor& tensor, int64_t place);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DTENSOR_H_
