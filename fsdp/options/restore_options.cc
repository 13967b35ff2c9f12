// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/options/restore_options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fsdp {

absl::StatusOr<std::vector<AttributeDifference>> CheckSavedAttributes(const RunMetadata& saved,
                                                                      const RestoreOptions& options) {
  RunMetadata current = options.required;
  current.insert(options.listed.begin(), options.listed.end());
  std::vector<AttributeDifference> differences = CompareAttributes(saved, current);
  std::vector<std::string> refused;
  for (const AttributeDifference& difference : differences) {
    const bool is_required = options.required.count(difference.name) != 0;
    const bool has_two_values = difference.saved.has_value() && difference.current.has_value();
    if (!is_required || !has_two_values || options.allowed.count(difference.name) != 0) continue;
    refused.push_back(absl::StrCat(difference.name, " was ", ToString(*difference.saved), " when it was saved, and is ",
                                   ToString(*difference.current), " here"));
  }
  if (refused.empty()) return differences;
  return absl::FailedPreconditionError(absl::StrCat(absl::StrJoin(refused, "; "),
                                                    ". Give it the value that was saved, or name it in ",
                                                    "RestoreOptions::allowed if the difference is meant"));
}

}  // namespace fsdp
