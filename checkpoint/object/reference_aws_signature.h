// SPDX-License-Identifier: Apache-2.0
//
// For tests: AWS Signature Version 4 of a request, computed from the specification with its own SHA-256, to be compared
// with the signature that libcurl sends. A test compares it with the vectors that Amazon has published. Pure.
#ifndef FSDP_CHECKPOINT_OBJECT_REFERENCE_AWS_SIGNATURE_H_
#define FSDP_CHECKPOINT_OBJECT_REFERENCE_AWS_SIGNATURE_H_

#include <map>
#include <string>
#include <vector>

namespace fsdp {

struct SignedRequest {
  std::string method;
  std::string path;                            // as it was sent: encoded
  std::string query;                           // as it was sent, without the question mark
  std::map<std::string, std::string> headers;  // names in lower case
  std::vector<std::string> signed_headers;     // names, sorted
  std::string payload;                         // SHA-256 of the body in hexadecimal, or UNSIGNED-PAYLOAD
  std::string region;
  std::string service = "s3";
};

// The 64 digits after "Signature=".
std::string AwsSignature(const SignedRequest& request, const std::string& secret_access_key);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_REFERENCE_AWS_SIGNATURE_H_
