// SPDX-License-Identifier: Apache-2.0
//
// NameFilter: which names a conversion keeps and how it renames them, as regular expressions (ECMAScript, matching
// anywhere in a name; anchor with ^ and $). Filters see the names of the source; renames come after, in order, each
// replacing every match. Immutable, thread-safe.
#ifndef FSDP_CHECKPOINT_CONVERT_NAME_FILTER_H_
#define FSDP_CHECKPOINT_CONVERT_NAME_FILTER_H_

#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

class NameFilter {
 public:
  struct Patterns {
    std::vector<std::string> include;                         // at least one must match, unless the list is empty
    std::vector<std::string> exclude;                         // none may match
    std::vector<std::pair<std::string, std::string>> rename;  // pattern and replacement; $1 or \1 is the first group
  };

  NameFilter() = default;  // keeps all

  // kInvalidArgument names the pattern that is not a regular expression.
  static absl::StatusOr<NameFilter> Create(const Patterns& patterns);

  // True when every name is kept unchanged, so that callers can skip the names altogether.
  bool empty() const { return keeps_all() && rename_.empty(); }

  // True when no name is left out.
  bool keeps_all() const { return include_.empty() && exclude_.empty(); }

  // Whether `name`, a name of the source, is kept. kInvalidArgument when the name is too long or the expression too
  // complex to be matched.
  absl::StatusOr<bool> Keeps(const std::string& name) const;

  // The name in the target for a kept name. Errors as Keeps.
  absl::StatusOr<std::string> Rename(const std::string& name) const;

 private:
  std::vector<std::regex> include_;
  std::vector<std::regex> exclude_;
  std::vector<std::pair<std::regex, std::string>> rename_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_NAME_FILTER_H_
