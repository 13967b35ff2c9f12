// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/s3_request_url.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fsdp {
namespace {

std::string Encode(absl::string_view text, bool is_path) {
  std::string encoded;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || absl::StrContains("-_.~", absl::string_view(&c, 1)) || (is_path && c == '/')) {
      encoded.push_back(c);
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

}  // namespace

// A bucket name with dots in the host name would not match the certificate, and other servers do not support such host
// names.
std::string S3BaseUrl(const std::string& bucket, const AwsConfig& config) {
  if (!config.endpoint.empty()) return absl::StrCat(config.endpoint, "/", bucket, "/");
  const std::string domain = absl::StartsWith(config.region, "cn-") ? "amazonaws.com.cn" : "amazonaws.com";
  const std::string host = absl::StrCat("s3.", config.region, ".", domain, "/");
  if (absl::StrContains(bucket, ".")) return absl::StrCat("https://", host, bucket, "/");
  return absl::StrCat("https://", bucket, ".", host);
}

std::string EncodeS3Key(absl::string_view key) { return Encode(key, true); }

// Sorted: libcurl before 8.3 signs a query as it is written, but the signature is defined for the sorted one. A name
// without a value also gets an equals sign.
std::string EncodeS3Query(S3Query query) {
  std::sort(query.begin(), query.end());
  std::string encoded;
  for (const auto& [name, value] : query) {
    absl::StrAppend(&encoded, encoded.empty() ? "?" : "&", Encode(name, false), "=", Encode(value, false));
  }
  return encoded;
}

}  // namespace fsdp
