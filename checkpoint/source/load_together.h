// SPDX-License-Identifier: Apache-2.0
//
// LoadTogether: a load on every rank of a group, of one checkpoint. Each rank reads files by itself, perhaps on another
// host, so the ranks agree on them first: rank 0 chooses the step of a ROOT for all, and all compare what they have
// opened (TensorSource::Identity) before one of them reads an element.
#ifndef FSDP_CHECKPOINT_SOURCE_LOAD_TOGETHER_H_
#define FSDP_CHECKPOINT_SOURCE_LOAD_TOGETHER_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_driver.h"
#include "fsdp/checkpoint/source/load.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The driver for a path: FindFormat, or a choice of fewer formats.
using FindDriver = absl::FunctionRef<absl::StatusOr<const FormatDriver*>(const std::string& path)>;

// As ResolveCheckpoint and the collective LoadCheckpoint of checkpoint/checkpoint.h, for the formats of `find`.
absl::StatusOr<std::string> ResolveTogether(const std::string& path, ProcessGroup& group, FindDriver find,
                                            std::vector<std::string>* skipped = nullptr);
absl::Status LoadTogether(const std::string& path, StateDict& wanted, ProcessGroup& group, const LoadOptions& options,
                          FindDriver find);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_LOAD_TOGETHER_H_
