// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch_checkpointing/plain_pickle.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

constexpr int64_t kMaxSmallDict = 64;

}  // namespace

absl::Status BrokenPickle(PickleValue value, const std::string& what) {
  return absl::DataLossError(absl::StrCat("byte ", value.place(), " of the pickle: ", what));
}

absl::Status UnsupportedPickle(PickleValue value, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("byte ", value.place(), " of the pickle: ", what));
}

absl::StatusOr<PickleValue> PickleMember(PickleValue dict, std::string_view name) {
  if (!dict.is(Kind::kDict) || dict.size() > kMaxSmallDict) {
    return BrokenPickle(dict, absl::StrCat("a dict with ", Quote(name), " was expected"));
  }
  for (int64_t i = dict.size(); i-- > 0;) {
    const auto [key, value] = dict.member(i);
    if (key.is_string(name)) return value;
  }
  return BrokenPickle(dict, absl::StrCat("a dict without ", Quote(name)));
}

absl::StatusOr<std::string> PickleText(PickleValue value, size_t max_bytes) {
  if (!value.is(Kind::kString) || value.text().size() > max_bytes)
    return BrokenPickle(value, "a short text was expected");
  return std::string(value.text());
}

absl::StatusOr<int64_t> PickleInteger(PickleValue value, int64_t limit) {
  if (value.is(Kind::kInt) && value.integer() >= 0 && value.integer() < limit) return value.integer();
  return BrokenPickle(value, absl::StrCat("an integer from 0 to ", limit - 1, " was expected"));
}

absl::StatusOr<int64_t> PickleRank(PickleValue key, int64_t limit) {
  if (!key.is(Kind::kString)) return PickleInteger(key, limit);
  int64_t rank = 0;
  for (const char c : key.text()) {
    rank = c >= '0' && c <= '9' && rank < limit ? rank * 10 + (c - '0') : limit;
  }
  if (key.text().empty() || rank >= limit) return BrokenPickle(key, "a rank was expected");
  return rank;
}

}  // namespace fsdp
