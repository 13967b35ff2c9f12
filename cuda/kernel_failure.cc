// SPDX-License-Identifier: Apache-2.0
//
// The state goes kNone -> kBeingWritten -> kWritten: the first thread that refuses a value takes the record by a
// compare-and-swap, fills it in, and publishes it with a fence of system scope; the host reads the state with acquire
// order and the fields after it. The messages equal the host kernels' messages word for word, so that tests hold for
// both.

#include "fsdp/cuda/kernel_failure.h"

#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<std::shared_ptr<KernelFailure>> KernelFailure::Create(Device& device) {
  FSDP_ASSIGN_OR_RETURN(Buffer memory, device.AllocatePinned(sizeof(KernelRefusal)));
  new (memory.data()) KernelRefusal();
  return std::shared_ptr<KernelFailure>(new KernelFailure(std::move(memory)));
}

absl::Status KernelFailure::status() const {
  const KernelRefusal& r = *refusal();
  if (__atomic_load_n(&r.state, __ATOMIC_ACQUIRE) != KernelRefusal::kWritten) return absl::OkStatus();
  if (r.kind == KernelRefusal::kToken) {
    return absl::OutOfRangeError(absl::StrCat("embedding: token ", r.value, " at index ", r.index, " of ", r.count,
                                              " is beyond the vocabulary of ", r.bound));
  }
  return absl::OutOfRangeError(absl::StrCat("cross entropy: target ", r.value, " at index ", r.index, " of ", r.count,
                                            " is not in [0, ", r.bound, ")"));
}

}  // namespace fsdp
