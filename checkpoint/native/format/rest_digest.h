// SPDX-License-Identifier: Apache-2.0
//
// RestDigest: the digest of the bytes of a file outside of its payload. They are read in parts by several threads and
// may arrive out of order; a part that arrives early is kept until all parts before it have arrived. Thread-safe.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_REST_DIGEST_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_REST_DIGEST_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/base/digest.h"

namespace fsdp {

class RestDigest {
 public:
  // For a file whose rest has `parts` parts.
  explicit RestDigest(int64_t parts) : parts_(parts) {}

  // Adds part `part`; called once for each. An error replaces bytes that could not be read. Blocks while too many bytes
  // are kept, so threads must take parts in ascending order, and each must add its own in that order. Returns true for
  // the call after which all parts are added.
  bool Add(int64_t part, absl::StatusOr<absl::Span<const std::byte>> bytes);

  // Once all parts are added: the digest, or the error of the first part that has one.
  absl::StatusOr<Digest> Finish() const;

 private:
  void Append(absl::Span<const std::byte> bytes);

  const int64_t parts_;
  mutable std::mutex mutex_;
  std::condition_variable appended_;
  // All guarded by mutex_.
  DigestBuilder digest_;
  int64_t next_ = 0;  // the part that is to be appended next
  std::map<int64_t, std::vector<std::byte>> early_;
  int64_t early_bytes_ = 0;
  int64_t failed_ = -1;  // the first part that has an error
  absl::Status error_;   // of part failed_
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_REST_DIGEST_H_
