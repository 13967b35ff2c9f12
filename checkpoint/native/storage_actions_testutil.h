// SPDX-License-Identifier: Apache-2.0
//
// For tests with faults of storage: everything that this project does with files, as actions whose results can be
// checked: saves of all forms, loads, searches, repairs, deletions, conversions, and copies to and from a store.
#ifndef FSDP_CHECKPOINT_NATIVE_STORAGE_ACTIONS_TESTUTIL_H_
#define FSDP_CHECKPOINT_NATIVE_STORAGE_ACTIONS_TESTUTIL_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace fsdp {

struct StorageAction {
  using InRoot = std::function<absl::Status(const std::string& root)>;

  std::string name;
  InRoot prepare;
  InRoot act;          // after `prepare`
  InRoot check;        // after an action that succeeded: its result
  InRoot after_error;  // after one that failed: the old is there, or the new, whole
};

std::vector<StorageAction> StorageActions();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_STORAGE_ACTIONS_TESTUTIL_H_
