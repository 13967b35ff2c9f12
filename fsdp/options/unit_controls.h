// SPDX-License-Identifier: Apache-2.0
//
// UnitControls: the properties of one unit that a program may change between passes, by FSDP2's set_* methods. The
// Executor reads them at the start of each pass. All ranks must set the same values.
#ifndef FSDP_FSDP_OPTIONS_UNIT_CONTROLS_H_
#define FSDP_FSDP_OPTIONS_UNIT_CONTROLS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// A program's own all-gather of a unit's parameters, instead of ProcessGroup::AllGather.
class AllGatherComm {
 public:
  virtual ~AllGatherComm() = default;

  // Memory for the output of one all-gather: [numel] in `dtype`, on the group's device, else the forward or backward
  // that needs it is kInvalidArgument. Called before each AllGather. The streams hold it until the work that reads it
  // has run. That work is on one stream, as are the calls, so the next call may return the same memory.
  virtual absl::StatusOr<Tensor> Allocate(int64_t numel, DType dtype, ProcessGroup& group) = 0;

  // Puts the all-gather on `stream`. `input` is this rank's slice of `output`. Errors surface at the stream.
  virtual void AllGather(const Tensor& input, const Tensor& output, ProcessGroup& group, Stream& stream) = 0;
};

// A program's own reduce-scatter of a unit's gradient, instead of ProcessGroup::ReduceScatter.
class ReduceScatterComm {
 public:
  virtual ~ReduceScatterComm() = default;

  // Memory for the input of one reduce-scatter, of which the output is a slice: as AllGatherComm::Allocate.
  virtual absl::StatusOr<Tensor> Allocate(int64_t numel, DType dtype, ProcessGroup& group) = 0;

  // Puts the reduce-scatter on `stream`. `output` is this rank's slice of `input`. Errors surface at the stream.
  virtual void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, ProcessGroup& group,
                             Stream& stream) = 0;
};

// Called with the reduced gradient, flat and in the reduce dtype, before the division that follows the collectives.
using AllReduceHook = std::function<absl::Status(const Tensor& reduced, Stream& stream)>;

// The defaults are FSDP1's behaviour. options/unit_options.h draws how controls reach the schedule.
struct UnitControls {
  bool requires_gradient_sync = true;  // off: backward keeps the gradient local
  bool requires_all_reduce = true;     // off: the shard group's sum is kept, and added to a later all-reduce

  std::optional<bool> reshard_after_forward = {};  // default: all but the root
  bool reshard_after_backward = true;              // after a backward that keeps the gradient local
  bool unshard_in_backward = true;                 // off: for a unit whose parameters backward does not use

  std::optional<double> gradient_divide_factor = {};  // default: the number of ranks
  bool force_sum_reduction = false;                   // collectives sum; divisions are kernels

  // Units to all-gather before this unit's forward and backward; default: the schedule's choice.
  std::optional<std::vector<int>> forward_prefetch = {};
  std::optional<std::vector<int>> backward_prefetch = {};

  std::shared_ptr<AllGatherComm> all_gather = {};
  std::shared_ptr<ReduceScatterComm> reduce_scatter = {};

  // On: the memory of the unit's collectives is a symmetric window of its groups (symmetric_group.h).
  bool symm_mem = false;

  // The shard group's ranks as a group for all-gathers or reduce-scatters only; null: they use the shard group.
  std::shared_ptr<ProcessGroup> all_gather_group = {};
  std::shared_ptr<ProcessGroup> reduce_scatter_group = {};

  // Buffers that gradients are copied to for their reduction; the largest of all units counts.
  int reduce_scatter_max_input_buffers = 1;

  // On: the unit is unsharded into the same memory each time, which no other unit uses.
  bool keep_unsharded_storage = false;

  AllReduceHook all_reduce_hook = {};
  Stream* all_reduce_hook_stream = nullptr;  // the stream that it runs on; default: the reduction's
};

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIONS_UNIT_CONTROLS_H_
