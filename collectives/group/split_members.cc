// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/group/split_members.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

// Each blob is "color key".
absl::StatusOr<std::vector<int>> SplitMembers(const BlobGather& gather, int color, int key) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, gather(absl::StrCat(color, " ", key)));
  std::vector<std::pair<int, int>> key_and_rank;
  for (size_t r = 0; r < blobs.size(); ++r) {
    const std::pair<std::string, std::string> fields = absl::StrSplit(blobs[r], absl::MaxSplits(' ', 1));
    int theirs = 0;
    int their_key = 0;
    if (!absl::SimpleAtoi(fields.first, &theirs) || !absl::SimpleAtoi(fields.second, &their_key)) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", r, " is not in split, as this rank is"));
    }
    if (theirs == color) key_and_rank.emplace_back(their_key, static_cast<int>(r));
  }
  std::sort(key_and_rank.begin(), key_and_rank.end());
  std::vector<int> members;
  for (const auto& [their_key, member] : key_and_rank) members.push_back(member);
  return members;
}

}  // namespace fsdp
