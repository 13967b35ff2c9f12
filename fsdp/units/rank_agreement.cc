// SPDX-License-Identifier: Apache-2.0
//
// Every rank gathers the facts of all, so each finds the same first difference and all of them fail alike. Facts travel
// as lines, subject and value apart by a byte that no name has.
#include "fsdp/fsdp/units/rank_agreement.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr char kSeparator = '\x1f';

// One line of a rank's facts, as a message shows it where the subjects differ too.
std::string Shown(std::string_view line) {
  if (line.empty()) return "nothing";
  const size_t separator = line.find(kSeparator);
  return absl::StrCat(std::string(line.substr(0, separator)), " (", std::string(line.substr(separator + 1)), ")");
}

absl::Status Difference(std::string_view mine, std::string_view others, size_t rank) {
  constexpr char kBegin[] = "ranks wrap different models: ";
  const size_t separator = mine.find(kSeparator);
  if (separator != std::string_view::npos && others.substr(0, separator + 1) == mine.substr(0, separator + 1)) {
    return absl::FailedPreconditionError(absl::StrCat(kBegin, std::string(mine.substr(0, separator)), " is ",
                                                      std::string(mine.substr(separator + 1)), " on rank 0 and ",
                                                      std::string(others.substr(separator + 1)), " on rank ", rank,
                                                      ": expected the same on all ranks"));
  }
  return absl::FailedPreconditionError(absl::StrCat(kBegin, "rank 0 has ", Shown(mine), " where rank ", rank, " has ",
                                                    Shown(others), ": expected the same on all ranks"));
}

}  // namespace

void RankAgreement::Add(std::string_view subject, std::string value) {
  facts_.emplace_back(std::string(subject), std::move(value));
}

absl::Status RankAgreement::Check(const ShardGroups& groups) const {
  std::string lines;
  for (const auto& [subject, value] : facts_) {
    absl::StrAppend(&lines, subject, std::string(1, kSeparator), value, "\n");
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, AllRanks(groups).GatherBlobs(lines));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::vector<std::string> first = absl::StrSplit(all[0], '\n'), other = absl::StrSplit(all[rank], '\n');
    size_t line = 0;
    while (line < std::min(first.size(), other.size()) && first[line] == other[line]) ++line;
    return Difference(line < first.size() ? first[line] : "", line < other.size() ? other[line] : "", rank);
  }
  return absl::OkStatus();
}

}  // namespace fsdp
