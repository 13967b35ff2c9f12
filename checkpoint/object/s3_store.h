// SPDX-License-Identifier: Apache-2.0
//
// S3Store: a bucket of Amazon S3 or of another server with its API (MinIO, Ceph, R2, moto), through libcurl.
//
//   FSDP_ASSIGN_OR_RETURN(const AwsConfig config, LoadAwsConfig(ProcessEnvironment()));
//   FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ObjectStore> store, OpenS3Store("models", config));
#ifndef FSDP_CHECKPOINT_OBJECT_S3_STORE_H_
#define FSDP_CHECKPOINT_OBJECT_S3_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/checkpoint/object/aws_config.h"
#include "fsdp/checkpoint/object/object_store.h"

namespace fsdp {

struct S3Options {
  // Behaviour.

  // Maximum number of times that a request is sent while the store does not answer, requests to slow down or reports an
  // error of its own. Pauses between attempts begin with `first_pause` and double up to 10 seconds, plus up to half of
  // that at random, so that many clients do not retry together. By default a request fails after about 7 seconds of
  // pauses, and after at most 3.5 minutes of silence or trickling (see stall_timeout).
  int attempts = 6;
  absl::Duration first_pause = absl::Milliseconds(200);

  // A transfer of less than HttpClient::kLeastBytesPerSecond for this long is aborted and counts as an attempt; so does
  // a request to join parts that takes 5 minutes. Whole seconds.
  absl::Duration stall_timeout = absl::Seconds(30);

  // Performance.

  // Longer objects are put in parts of this size, `threads` at a time; in longer parts if there would be more than
  // 10000. At least 5 MiB, S3's own limit, except in tests.
  int64_t part_bytes = int64_t{32} << 20;
  int threads = 4;
};

// Sends no request yet. kFailedPrecondition if libcurl is not installed (curl_library.h).
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenS3Store(const std::string& bucket, const AwsConfig& config,
                                                         const S3Options& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_S3_STORE_H_
