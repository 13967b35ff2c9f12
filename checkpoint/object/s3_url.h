// SPDX-License-Identifier: Apache-2.0
//
// S3Url: "s3://bucket/prefix", as every S3 client spells it. Pure.
#ifndef FSDP_CHECKPOINT_OBJECT_S3_URL_H_
#define FSDP_CHECKPOINT_OBJECT_S3_URL_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fsdp {

struct S3Url {
  std::string bucket;
  std::string prefix;  // without slashes at its ends; empty: the whole bucket

  // "s3://bucket/prefix".
  std::string ToString() const;

  // The key of `name` below the prefix: "prefix/name".
  std::string Key(absl::string_view name) const;
};

// True for texts that begin with "s3://", in lower case: all others are paths.
bool IsS3Url(absl::string_view text);

// kInvalidArgument, with the violated rule, for any other text: a bucket has 3 to 63 lower-case letters, digits, dots
// and hyphens, and begins and ends with a letter or digit; a prefix has at most 800 bytes, which leaves room for the
// names below it, no control characters, and no empty, "." or ".." part, which proxies interpret as a path.
absl::StatusOr<S3Url> ParseS3Url(absl::string_view text);

// `text`, a URL that may be wrong, for a message: all before the last "@" of "scheme://user:password@host" is "***",
// for a password may hold any character. Texts without an "@" are returned as they are.
std::string WithoutPassword(absl::string_view text);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_S3_URL_H_
