// SPDX-License-Identifier: Apache-2.0
//
// S3Store: a bucket of Amazon S3 or of another server that speaks its API (MinIO, Ceph, R2, moto), by libcurl.
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

  // How often a request is sent in all while the store has no answer, asks to slow down or has an error of its own.
  // Between two attempts is a pause, from `first_pause` on doubled up to 10 seconds, with up to a half of it at random
  // on top, so that many clients do not come back together. By default a request is given up after about 7 seconds of
  // pauses, and after at most 3 minutes and a half of silence (see stall_timeout).
  int attempts = 6;
  absl::Duration first_pause = absl::Milliseconds(200);

  // A transfer without a byte for so long is broken off and counts as an attempt. Whole seconds.
  absl::Duration stall_timeout = absl::Seconds(30);

  // Performance.

  // Objects that are longer are put in parts of this size, `threads` at a time; longer parts where there would be more
  // than 10000. At least 5 MiB, S3's own limit, but for tests.
  int64_t part_bytes = int64_t{32} << 20;
  int threads = 4;
};

// Sends nothing yet. kFailedPrecondition where libcurl is not installed (curl_library.h).
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenS3Store(const std::string& bucket, const AwsConfig& config,
                                                         const S3Options& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_S3_STORE_H_
