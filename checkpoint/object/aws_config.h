// SPDX-License-Identifier: Apache-2.0
//
// AwsConfig: keys, region and endpoint, found in the same places as by every S3 client: first in the environment, then
// in ~/.aws.
//
//   keys      AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; the profile in ~/.aws/credentials, then in
//             ~/.aws/config. The profile is AWS_PROFILE or "default", the files AWS_SHARED_CREDENTIALS_FILE and
//             AWS_CONFIG_FILE.
//   region    AWS_REGION, AWS_DEFAULT_REGION, `region` of the profile, us-east-1
//   endpoint  AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, `endpoint_url` of the profile, Amazon's of the region
//
// Keys that a profile gets from another program or service (SSO, roles, an EC2 instance) are not requested: the error
// explains how to export them. Nothing here prints or logs a secret, and no message contains one.
#ifndef FSDP_CHECKPOINT_OBJECT_AWS_CONFIG_H_
#define FSDP_CHECKPOINT_OBJECT_AWS_CONFIG_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

// Never printed: a type without a text form.
struct AwsCredentials {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  // only of temporary keys
};

struct AwsConfig {
  AwsCredentials credentials;
  std::string region;
  std::string endpoint;  // "http://127.0.0.1:9000", without a trailing slash; empty: Amazon's

  // A file of certificates that https servers are checked against; empty: the system's.
  std::string ca_bundle;
};

// The value of a variable; nothing if it is not set.
using EnvironmentReader = std::function<std::optional<std::string>(const char* name)>;

// The environment of the process.
EnvironmentReader ProcessEnvironment();

// Reads the files at each call. kUnauthenticated, naming the searched places, without keys; kInvalidArgument for half a
// pair of keys, a profile that no file has, an endpoint that is not an http or https URL of a host, and a region or key
// with invalid characters; kPermissionDenied and others for a file that cannot be read.
absl::StatusOr<AwsConfig> LoadAwsConfig(const EnvironmentReader& environment);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_AWS_CONFIG_H_
