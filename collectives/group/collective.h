// SPDX-License-Identifier: Apache-2.0
//
// Collective: one call of one rank, as data. The host backends run it (host_collectives.h), and ranks compare its spec
// to find out whether they disagree. Values without locks: each is used by one thread at a time.
#ifndef FSDP_COLLECTIVES_GROUP_COLLECTIVE_H_
#define FSDP_COLLECTIVES_GROUP_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/collectives/group/reduce_op.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Values go through shared memory between ranks; never renumber.
enum class CollectiveOp : uint8_t {
  kAllGather = 0,
  kReduceScatter = 1,
  kAllReduce = 2,
  kBroadcast = 3,
  kBarrier = 4,
  kAllGatherObject = 5,
  kReplay = 6,  // the replay of a graph that contains collectives of the group
};

// "all_gather", ... A literal. "unknown" for a number that is not an operation.
const char* CollectiveOpName(CollectiveOp op);

// Identifies one collective of its group: the operation and the number of the call, from 1.
struct CollectiveId {
  CollectiveOp op = CollectiveOp::kBarrier;
  uint64_t sequence = 0;

  // "all_gather #417"
  std::string ToString() const;
};

// The arguments that must be equal on all ranks.
struct CollectiveSpec {
  CollectiveOp op = CollectiveOp::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce_op = ReduceOp::kSum;
  int32_t root = 0;
  // Number of elements: of all_gather's input, of reduce_scatter's output, or of the whole tensor of all_reduce and
  // broadcast. For a blob: its bytes, which may differ between ranks. For a replay: its collectives.
  int64_t count = 0;

  // True if ranks may meet in one collective with these two specs: all fields are equal, except for the size of a blob.
  bool AgreesWith(const CollectiveSpec& other) const;

  // "float32[1024]", "avg bfloat16[7]", "uint8[3] from root 1"; empty for operations without elements.
  std::string ArgumentsToString() const;

  // "all_gather float32[1024]".
  std::string ToString() const;
};

// `specs`: by rank, of call number `sequence`. If they differ, kFailedPrecondition with both sides: the lowest rank
// that differs from rank 0, and rank 0. Every rank that checks the same specs gets the same text.
absl::Status CheckAgreement(absl::Span<const CollectiveSpec> specs, uint64_t sequence);

// A spec with this rank's memory, which is not owned and may be on any device. all_reduce and broadcast work in place,
// with equal input and output. A barrier has neither.
struct Collective {
  CollectiveSpec spec;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
};

// Check the arguments of one rank: sizes, dtypes, overlap. kInvalidArgument names the tensor, the expected and the
// actual value. See ProcessGroup for the rules. O(1); no element is read.
absl::Status CheckAllGather(const Tensor& input, const Tensor& output, int rank, int size);
absl::Status CheckReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, int rank, int size);
absl::Status CheckAllReduce(const Tensor& t, ReduceOp op);
absl::Status CheckBroadcast(const Tensor& t, int root, int size);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_COLLECTIVE_H_
