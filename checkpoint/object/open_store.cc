// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/open_store.h"

#include "absl/strings/string_view.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/object/aws_config.h"
#include "fsdp/checkpoint/object/s3_store.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjectStore(const S3Url& url, const std::string& endpoint_url) {
  // An endpoint from the command line replaces the variable of the highest precedence.
  const EnvironmentReader process = ProcessEnvironment();
  const auto environment = [&](const char* name) {
    const bool is_endpoint = absl::string_view(name) == "AWS_ENDPOINT_URL_S3";
    return is_endpoint && !endpoint_url.empty() ? endpoint_url : process(name);
  };
  FSDP_ASSIGN_OR_RETURN(const AwsConfig config, LoadAwsConfig(environment));
  return OpenS3Store(url.bucket, config);
}

}  // namespace fsdp
