// SPDX-License-Identifier: Apache-2.0
//
// A name that is missing on one rank cannot be loaded on any: its unit is exchanged by all ranks or by none. So the
// lists are gathered and joined, keeping the order of the first rank that has a name.
#include "fsdp/fsdp/state/incompatible_keys.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

void AddNew(const std::vector<std::string>& names, std::vector<std::string>& all) {
  for (const std::string& name : names) {
    if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
  }
}

}  // namespace

absl::Status IncompatibleKeys::ToStatus(std::string_view subject) const {
  if (empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(subject), " does not fit the model; missing: [",
                                                 absl::StrJoin(missing_keys, ", "), "]; unexpected: [",
                                                 absl::StrJoin(unexpected_keys, ", "), "]"));
}

absl::StatusOr<IncompatibleKeys> UnionOfKeys(const AllRanks& ranks, const IncompatibleKeys& mine, bool first_only) {
  const nlohmann::json names = {mine.missing_keys, mine.unexpected_keys};
  const std::vector<std::uint8_t> packed = nlohmann::json::to_msgpack(names);
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        ranks.GatherBlobs(std::string(packed.begin(), packed.end())));
  IncompatibleKeys all;
  for (size_t rank = 0; rank < (first_only ? 1 : blobs.size()); ++rank) {
    const nlohmann::json part = nlohmann::json::from_msgpack(blobs[rank], /*strict=*/true, /*allow_exceptions=*/false);
    if (!part.is_array() || part.size() != 2) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " sent no list of names; ranks must load at the same time"));
    }
    AddNew(part[0].get<std::vector<std::string>>(), all.missing_keys);
    AddNew(part[1].get<std::vector<std::string>>(), all.unexpected_keys);
  }
  return all;
}

}  // namespace fsdp
