// SPDX-License-Identifier: Apache-2.0
//
// ZeroPayload: the payload of tests whose values do not matter.
#ifndef FSDP_CHECKPOINT_SOURCE_ZERO_PAYLOAD_TESTUTIL_H_
#define FSDP_CHECKPOINT_SOURCE_ZERO_PAYLOAD_TESTUTIL_H_

#include <cstring>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/payload_reader.h"

namespace fsdp {

// Zeros, for state whose tensors are all of float32.
inline PayloadReader ZeroPayload() {
  return [](const StateKey&, const Interval& interval, void* out) {
    std::memset(out, 0, interval.size() * sizeof(float));
    return absl::OkStatus();
  };
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_ZERO_PAYLOAD_TESTUTIL_H_
