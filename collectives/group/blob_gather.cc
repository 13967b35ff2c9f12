// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/group/blob_gather.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

namespace {

// True if `blob` may be the status of a rank. Other calls begin with printable characters, which are no codes: a host's
// name, JSON, numbers.
bool IsStatus(const std::string& blob) {
  return blob.empty() || (blob[0] > 0 && blob[0] <= static_cast<char>(absl::StatusCode::kUnauthenticated));
}

// True if `message` begins with a rank of `size` ranks: an error that they have agreed on before keeps its rank.
bool NamesItsRank(absl::string_view message, size_t size) {
  if (!absl::ConsumePrefix(&message, "rank ")) return false;
  while (!message.empty() && absl::ascii_isdigit(message[0])) message.remove_prefix(1);
  return absl::StartsWith(message, absl::StrCat(" of ", size, ": "));
}

}  // namespace

// A blob is empty for OK; else it is one byte with the code and then the message. Every rank sees the same blobs, so
// all report the error of the same rank, the lowest that has one.
absl::Status AllReduceStatus(const BlobGather& gather, const absl::Status& mine) {
  std::string blob;
  if (!mine.ok()) {
    blob = absl::StrCat(std::string(1, static_cast<char>(mine.code())), mine.message());
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, gather(blob));
  for (size_t r = 0; r < blobs.size(); ++r) {
    if (blobs[r].empty()) continue;
    if (!IsStatus(blobs[r])) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", r, " of ", blobs.size(),
                       " is in another call, this rank compares errors: ", "expected the same calls on all ranks"));
    }
    const std::string message = blobs[r].substr(1);
    return absl::Status(
        static_cast<absl::StatusCode>(blobs[r][0]),
        NamesItsRank(message, blobs.size()) ? message : absl::StrCat("rank ", r, " of ", blobs.size(), ": ", message));
  }
  return absl::OkStatus();
}

// Each blob is "color key". A rank that is in another call of the gather, such as AllReduceStatus, sends something
// else: the ranks have then diverged.
absl::StatusOr<std::vector<int>> SplitMembers(const BlobGather& gather, int color, int key) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, gather(absl::StrCat(color, " ", key)));
  std::vector<std::pair<int, int>> key_and_rank;
  for (size_t r = 0; r < blobs.size(); ++r) {
    const std::pair<std::string, std::string> fields = absl::StrSplit(blobs[r], absl::MaxSplits(' ', 1));
    int theirs = 0;
    int their_key = 0;
    if (!absl::SimpleAtoi(fields.first, &theirs) || !absl::SimpleAtoi(fields.second, &their_key)) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", r, " is in another call, this rank is in Split"));
    }
    if (theirs == color) key_and_rank.emplace_back(their_key, static_cast<int>(r));
  }
  std::sort(key_and_rank.begin(), key_and_rank.end());
  std::vector<int> members;
  for (const auto& [their_key, member] : key_and_rank) members.push_back(member);
  return members;
}

}  // namespace fsdp
