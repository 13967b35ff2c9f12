// SPDX-License-Identifier: Apache-2.0
//
// A blob is kKind, the host's name, and the facts, each ended by kEnd. Field leaves no kEnd in them. The kind tells
// a rank that is in another call of the control plane from one that has other facts.
#include "fsdp/collectives/group/same_on_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr char kEnd = '\n';
constexpr char kKind[] = "same on ranks";
constexpr size_t kFactsBegin = 2;  // after kind and host
constexpr size_t kFactFields = 3;
constexpr size_t kWhole = 256;  // the longest text that Printable does not cut

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unknown host";
}

// `text` in a form that equals only its own. Printable cuts long texts, so they are compared by their digest.
std::string Field(std::string_view text) {
  const std::string printable = Printable(text);
  return text.size() <= kWhole ? printable : absl::StrCat(printable, " (digest ", DigestOf(text).ToHex(), ")");
}

std::string Encode(const std::vector<RankFact>& facts) {
  std::string blob;
  const auto add = [&blob](std::string_view text) { absl::StrAppend(&blob, Field(text), std::string(1, kEnd)); };
  add(kKind);
  add(HostName());
  for (const RankFact& fact : facts) {
    add(fact.subject);
    add(fact.value);
    add(fact.place);
  }
  return blob;
}

// The facts of one rank, in the order of its blob.
class RankFacts {
 public:
  RankFacts(size_t rank, const std::string& blob) : rank_(rank), fields_(absl::StrSplit(blob, kEnd)) {}

  bool is_whole() const { return fields_.size() > kFactsBegin && fields_[0] == kKind; }
  size_t size() const { return (fields_.size() - kFactsBegin) / kFactFields; }
  const std::string& subject(size_t i) const { return fields_[kFactsBegin + kFactFields * i]; }
  const std::string& value(size_t i) const { return fields_[kFactsBegin + kFactFields * i + 1]; }
  const std::string& place(size_t i) const { return fields_[kFactsBegin + kFactFields * i + 2]; }

  // "0.1 on rank 2 (host-b, /data/m.safetensors)"
  std::string Describe(size_t i) const {
    const std::string where = place(i).empty() ? "" : absl::StrCat(", ", place(i));
    return absl::StrCat(value(i), " on rank ", rank_, " (", fields_[1], where, ")");
  }

  // The same with the subject in front, for a rank whose facts are about something else.
  std::string DescribeWhole(size_t i) const {
    return i < size() ? absl::StrCat(subject(i), ": ", Describe(i))
                      : absl::StrCat("nothing more on rank ", rank_, " (", fields_[1], ")");
  }

 private:
  size_t rank_;
  std::vector<std::string> fields_;
};

// The difference of `other` from `first`; empty if they are equal.
std::string Difference(const RankFacts& first, const RankFacts& other) {
  for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
    const bool has_both = i < first.size() && i < other.size();
    if (!has_both || first.subject(i) != other.subject(i)) {
      return absl::StrCat(first.DescribeWhole(i), ", but ", other.DescribeWhole(i));
    }
    if (first.value(i) != other.value(i)) {
      return absl::StrCat(first.subject(i), ": ", first.Describe(i), ", ", other.Describe(i));
    }
  }
  return "";
}

}  // namespace

absl::Status CheckSameOnRanks(ProcessGroup& group, const std::vector<RankFact>& mine, std::string_view advice) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, group.AllGatherObject(Encode(mine)));
  const RankFacts first(0, blobs[0]);
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    const RankFacts other(rank, blobs[rank]);
    if (!other.is_whole()) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", rank, " of ", blobs.size(),
                                                        " is in another call than this rank, which compares ",
                                                        mine.empty() ? "nothing" : Printable(mine[0].subject)));
    }
    const std::string difference = Difference(first, other);
    if (difference.empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(difference, "; expected the same on all ranks: ", std::string(advice)));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
