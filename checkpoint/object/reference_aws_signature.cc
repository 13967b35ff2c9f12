// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/reference_aws_signature.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fsdp/checkpoint/foreign/torch/sha256_testutil.h"

namespace fsdp {
namespace {

// RFC 2104; the result as bytes.
std::string Hmac(std::string key, const std::string& message) {
  constexpr size_t kBlock = 64;
  if (key.size() > kBlock) key = absl::HexStringToBytes(Sha256(key));
  key.resize(kBlock, '\0');
  std::string inner = key;
  std::string outer = key;
  for (char& c : inner) c = static_cast<char>(c ^ 0x36);
  for (char& c : outer) c = static_cast<char>(c ^ 0x5c);
  return absl::HexStringToBytes(Sha256(outer + absl::HexStringToBytes(Sha256(inner + message))));
}

// Sorted by name and value, each name with an equals sign.
std::string CanonicalQuery(const std::string& query) {
  std::vector<std::string> parts = absl::StrSplit(query, '&', absl::SkipEmpty());
  for (std::string& part : parts) {
    if (!absl::StrContains(part, "=")) part += "=";
  }
  std::sort(parts.begin(), parts.end());
  return absl::StrJoin(parts, "&");
}

}  // namespace

std::string AwsSignature(const SignedRequest& request, const std::string& secret_access_key) {
  std::string headers;
  for (const std::string& name : request.signed_headers) {
    const auto header = request.headers.find(name);
    absl::StrAppend(&headers, name, ":", header == request.headers.end() ? "" : header->second, "\n");
  }
  const std::string names = absl::StrJoin(request.signed_headers, ";");
  const std::string canonical = absl::StrJoin(
      {request.method, request.path, CanonicalQuery(request.query), headers, names, request.payload}, "\n");
  const auto time = request.headers.find("x-amz-date");
  const std::string at = time == request.headers.end() ? "" : time->second;
  const std::string day = at.substr(0, 8);
  const std::string scope = absl::StrJoin({day, request.region, request.service, std::string("aws4_request")}, "/");
  const std::string text = absl::StrJoin({std::string("AWS4-HMAC-SHA256"), at, scope, Sha256(canonical)}, "\n");
  // The key derivation of Signature Version 4: secret, day, region, service, each signing the next.
  std::string key = Hmac("AWS4" + secret_access_key, day);
  key = Hmac(Hmac(Hmac(key, request.region), request.service), "aws4_request");
  return absl::BytesToHexString(Hmac(key, text));
}

}  // namespace fsdp
