// SPDX-License-Identifier: Apache-2.0
//
// VerifySource: reads every element of an open checkpoint of any format. It finds the faults that the format can
// reveal: a truncated file, an invalid bool, a checksum that does not match. For checkpoints of ours use
// VerifyCheckpoint, which compares every byte.
#ifndef FSDP_CHECKPOINT_FORMATS_VERIFY_SOURCE_H_
#define FSDP_CHECKPOINT_FORMATS_VERIFY_SOURCE_H_

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// Reads in parallel, in bounded memory; blocks until all is read. A tensor that cannot be read is one problem in the
// report, and the others are still read. ReadBound (expansion.h) bounds the bytes that are read; a tensor that it cuts
// off is listed in partly_read.
absl::StatusOr<VerifyReport> VerifySource(const TensorSource& source, const VerifyOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMATS_VERIFY_SOURCE_H_
