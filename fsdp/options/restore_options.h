// SPDX-License-Identifier: Apache-2.0
//
// RestoreOptions: the attributes that FullyShardedDataParallel::Restore compares between the loaded state and this run,
// in addition to names and shapes: facts such as the number of attention heads, which make another model of the same
// parameters.
#ifndef FSDP_FSDP_OPTIONS_RESTORE_OPTIONS_H_
#define FSDP_FSDP_OPTIONS_RESTORE_OPTIONS_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/tensor/run_metadata.h"

namespace fsdp {

struct RestoreOptions {
  // The attributes of the state to load, if the caller knows them beforehand: a refusal then changes nothing. Empty:
  // the attributes that `load` sets in the state dict, compared after it.
  RunMetadata saved = {};

  // RunMetadata of this run. One of `required` must have the saved value; one of `listed` may have another.
  RunMetadata required = {};
  RunMetadata listed = {};

  // Names in `required` whose values may still differ.
  std::set<std::string> allowed = {};
};

// How `saved` differs from options.required and options.listed, in the order of names. An attribute that `saved` lacks
// counts as different, and is never refused: a state that was saved without attributes is loaded, and its values are
// unknown. The same holds for an attribute that only `saved` has. kFailedPrecondition names each attribute of
// `required` that has two values and is not allowed, with both. Pure.
absl::StatusOr<std::vector<AttributeDifference>> CheckSavedAttributes(const RunMetadata& saved,
                                                                      const RestoreOptions& options);

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIONS_RESTORE_OPTIONS_H_
