// SPDX-License-Identifier: Apache-2.0
//
// VerifySource: reads every element of an open checkpoint of any format. What it can find is what the format can tell:
// a truncated file, a bool that is none, a checksum of the format's own. Checkpoints of ours are VerifyCheckpoint's,
// which compares every byte.
#ifndef FSDP_CHECKPOINT_VERIFY_VERIFY_SOURCE_H_
#define FSDP_CHECKPOINT_VERIFY_VERIFY_SOURCE_H_

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/verify/verify.h"

namespace fsdp {

// Reads in parallel, in bounded memory. A tensor that cannot be read is a problem of the report, once, and the others
// are read all the same.
absl::StatusOr<VerifyReport> VerifySource(const TensorSource& source, const VerifyOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_VERIFY_VERIFY_SOURCE_H_
