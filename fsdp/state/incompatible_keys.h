// SPDX-License-Identifier: Apache-2.0
//
// IncompatibleKeys: the names that a model has and a state dict lacks, and the reverse: the result of a LoadStateDict
// that is not strict.
#ifndef FSDP_FSDP_STATE_INCOMPATIBLE_KEYS_H_
#define FSDP_FSDP_STATE_INCOMPATIBLE_KEYS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace fsdp {

struct LoadStateDictOptions {
  // Missing and unexpected names are an error. Off: they are returned, and all other entries are loaded.
  bool strict = true;

  // For FULL: only rank 0 has the state dict and sends it in batches; the state dicts that other ranks pass are
  // ignored. Off: each rank reads its own state dict, without communication.
  bool broadcast_from_rank0 = false;
};

// Clean names, in the order of the model and of the state dict.
struct IncompatibleKeys {
  std::vector<std::string> missing_keys;
  std::vector<std::string> unexpected_keys;

  bool empty() const { return missing_keys.empty() && unexpected_keys.empty(); }

  // kInvalidArgument with all names, unless empty: `subject` "does not fit the model; ...".
  absl::Status ToStatus(std::string_view subject) const;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_INCOMPATIBLE_KEYS_H_
