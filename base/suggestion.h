// SPDX-License-Identifier: Apache-2.0
//
// DidYouMean: what a person probably wanted to type.
#ifndef FSDP_BASE_SUGGESTION_H_
#define FSDP_BASE_SUGGESTION_H_

#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace fsdp {

// " (did you mean PREFIXname?)" for the one of `names` from which `typed` differs least: by at most a third of its
// letters, where a letter that is missing, added or wrong and two that changed places count one each; or else for the
// only name that begins with `typed`, or with which `typed` begins before an underscore. Empty if no name is near.
// `typed` is not in the result.
std::string DidYouMean(std::string_view typed, absl::Span<const std::string> names, std::string_view prefix = "");

}  // namespace fsdp

#endif  // FSDP_BASE_SUGGESTION_H_
