// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/s3_url.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/object/object_store.h"

namespace fsdp {
namespace {

constexpr absl::string_view kScheme = "s3://";

// S3's longest key has 1024 bytes; the rest is for the names below the prefix.
constexpr size_t kMaxPrefixBytes = 800;

absl::Status Bad(absl::string_view text, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(Quote(WithoutPassword(text)), ": expected ", expected));
}

// Lower case only, as in bucket names, which become host names.
bool IsAlphanumeric(char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); }

bool IsBucket(absl::string_view bucket) {
  return bucket.size() >= 3 && bucket.size() <= 63 && IsAlphanumeric(bucket.front()) && IsAlphanumeric(bucket.back()) &&
         std::all_of(bucket.begin(), bucket.end(), [](char c) { return IsAlphanumeric(c) || c == '.' || c == '-'; });
}

}  // namespace

std::string S3Url::ToString() const { return absl::StrCat(kScheme, bucket, prefix.empty() ? "" : "/", prefix); }

std::string S3Url::Key(absl::string_view name) const { return absl::StrCat(prefix, prefix.empty() ? "" : "/", name); }

std::string WithoutPassword(absl::string_view text) {
  const size_t at = text.rfind('@');
  if (at == absl::string_view::npos) return std::string(text);
  const size_t scheme = text.substr(0, at).find("://");
  const absl::string_view kept = scheme == absl::string_view::npos ? "" : text.substr(0, scheme + 3);
  return absl::StrCat(kept, "***", text.substr(at));
}

bool IsS3Url(absl::string_view text) { return absl::StartsWith(text, kScheme); }

absl::StatusOr<S3Url> ParseS3Url(absl::string_view text) {
  if (!IsS3Url(text)) return Bad(text, "s3://BUCKET/PREFIX");
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text.substr(kScheme.size()), absl::MaxSplits('/', 1));
  if (!IsBucket(parts.first)) {
    return Bad(text, "s3://BUCKET/PREFIX, BUCKET of 3 to 63 lower-case letters, digits, dots and hyphens");
  }
  const absl::string_view prefix = absl::StripSuffix(parts.second, "/");
  if (prefix.size() > kMaxPrefixBytes) return Bad(text, absl::StrCat("at most ", kMaxPrefixBytes, " bytes of prefix"));
  if (absl::EndsWith(prefix, "/") || !CheckObjectKey(prefix).ok()) {
    return Bad(text, "a prefix without control characters and without an empty, . or .. part");
  }
  return S3Url{std::string(parts.first), std::string(prefix)};
}

}  // namespace fsdp
