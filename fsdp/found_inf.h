// SPDX-License-Identifier: Apache-2.0
//
// FoundInf: whether any rank's loss or gradient of a step is not finite, as a number on the device. The optimizer reads
// it (Optimizer::set_found_inf) and then leaves parameters and state unchanged, so the host does not wait for the
// gradients before it issues the update. Used by one thread; can be captured in a graph.
//
//   found_inf->Begin(stream);
//   found_inf->Check(loss, stream);                        // of each micro-step
//   FSDP_ASSIGN_OR_RETURN(const GradClip clip, model->ClipGradNormAsync(1.0f));
//   found_inf->CheckOnAllRanks(clip.norm_on_device(), stream);
//   optimizer.set_found_inf(found_inf->flag());
#ifndef FSDP_FSDP_FOUND_INF_H_
#define FSDP_FSDP_FOUND_INF_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class FoundInf {
 public:
  // `group` has all ranks that train one model; the caller owns it, and it outlives this.
  static absl::StatusOr<std::unique_ptr<FoundInf>> Create(ProcessGroup& group);

  // These put work on `stream` and return.

  // Resets the flag: nothing is found yet.
  void Begin(Stream& stream);

  // Checks the elements of `t`, of a float dtype, on the group's device.
  void Check(const Tensor& t, Stream& stream);

  // As Check; afterwards all ranks have the findings of any rank. Collective.
  void CheckOnAllRanks(const Tensor& t, Stream& stream);

  // One float32: above 0 if something was found, else 0.
  const Tensor& flag() const { return flag_; }

 private:
  FoundInf(ProcessGroup& group, Tensor flag) : group_(group), flag_(std::move(flag)) {}

  ProcessGroup& group_;
  const Tensor flag_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_FOUND_INF_H_
