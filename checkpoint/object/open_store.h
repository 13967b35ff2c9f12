// SPDX-License-Identifier: Apache-2.0
//
// OpenObjectStore: for programs, the store that a URL of the command line names, with the keys of the process's
// environment and ~/.aws (aws_config.h).
#ifndef FSDP_CHECKPOINT_OBJECT_OPEN_STORE_H_
#define FSDP_CHECKPOINT_OBJECT_OPEN_STORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/object/object_store.h"
#include "fsdp/checkpoint/object/s3_url.h"

namespace fsdp {

// The bucket of `url`. `endpoint_url`, unless empty, overrides the environment and ~/.aws. Sends no request yet. Errors
// come from LoadAwsConfig and OpenS3Store.
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjectStore(const S3Url& url, const std::string& endpoint_url = "");

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_OPEN_STORE_H_
