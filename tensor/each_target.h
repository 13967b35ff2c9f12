// SPDX-License-Identifier: Apache-2.0
//
// For tests of kernels that Highway compiles per target: runs a body once with each target that this machine can run,
// so that one machine tests the code of smaller ones. Afterwards dispatch is as before.
#ifndef FSDP_TENSOR_EACH_TARGET_H_
#define FSDP_TENSOR_EACH_TARGET_H_

#include <cstdint>

#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace fsdp {

// Calls `body()` with AVX-512, AVX2 and the baseline chosen in turn, if this machine has them. Not thread-safe. The
// baseline always runs. A failed expectation inside of `body` prints the name of the target.
template <typename Body>
void ForEachTarget(Body body) {
  constexpr int64_t kTargets[] = {HWY_AVX3, HWY_AVX2, HWY_STATIC_TARGET};
  for (const int64_t target : kTargets) {
    if ((hwy::SupportedTargets() & target) == 0 && target != HWY_STATIC_TARGET) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    body();
  }
  // The next dispatch chooses the best target again.
  hwy::GetChosenTarget().DeInit();
}

}  // namespace fsdp

#endif  // FSDP_TENSOR_EACH_TARGET_H_
