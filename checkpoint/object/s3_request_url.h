// SPDX-License-Identifier: Apache-2.0
//
// The URLs of requests to S3, as Signature Version 4 signs them.
#ifndef FSDP_CHECKPOINT_OBJECT_S3_REQUEST_URL_H_
#define FSDP_CHECKPOINT_OBJECT_S3_REQUEST_URL_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "fsdp/checkpoint/object/aws_config.h"

namespace fsdp {

using S3Query = std::vector<std::pair<std::string, std::string>>;

// The URL of `bucket`, with a slash at its end.
std::string S3BaseUrl(const std::string& bucket, const AwsConfig& config);

// RFC 3986, as Signature Version 4 requires: encodes everything except unreserved characters and slashes.
std::string EncodeS3Key(absl::string_view key);

// "?a=1&b=", sorted; empty for an empty query.
std::string EncodeS3Query(S3Query query);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_S3_REQUEST_URL_H_
