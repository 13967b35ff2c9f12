// SPDX-License-Identifier: Apache-2.0
//
// MergeAdapter: a base model and a PEFT adapter of it as one TensorSource, whose tensors are the merged ones, computed
// while they are read: whatever reads sources can convert, load or compare the result without a copy of it.
#ifndef FSDP_CHECKPOINT_FOREIGN_PEFT_MERGED_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_PEFT_MERGED_SOURCE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/adapter_config.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// The traits, files, texts and tensors of `base`, in its dtypes, with the changes of `adapter` (merge_plan.h), which
// are among the notes of its layout. Reads all of the adapter's checksums first, if its format has them. Errors as
// PlanMerge.
absl::StatusOr<std::unique_ptr<TensorSource>> MergeAdapter(std::unique_ptr<TensorSource> base,
                                                           std::unique_ptr<TensorSource> adapter,
                                                           const AdapterConfig& config);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_PEFT_MERGED_SOURCE_H_
