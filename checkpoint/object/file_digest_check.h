// SPDX-License-Identifier: Apache-2.0
//
// FileDigestCheck: compares the bytes of one file of a checkpoint with the digests of its manifest while they arrive in
// order. Every byte is covered: payload by blocks, the rest of the file by one digest. Not thread-safe.
#ifndef FSDP_CHECKPOINT_OBJECT_FILE_DIGEST_CHECK_H_
#define FSDP_CHECKPOINT_OBJECT_FILE_DIGEST_CHECK_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/base/digest.h"
#include "fsdp/checkpoint/native/format/manifest.h"

namespace fsdp {

class FileDigestCheck {
 public:
  // `stored` comes from a decoded manifest and must outlive this.
  explicit FileDigestCheck(const StoredFile& stored) : stored_(stored) {}

  // Adds the next bytes. kDataLoss, with file, range and both digests, at the end of a damaged block, or when there are
  // more bytes than the file has.
  absl::Status Update(absl::Span<const std::byte> bytes);

  // Call after the last Update: kDataLoss when bytes are missing, or bytes outside of payload differ.
  absl::Status Finish() const;

 private:
  const StoredFile& stored_;
  int64_t offset_ = 0;  // bytes so far
  size_t extent_ = 0;   // the extent that begins or continues next
  int64_t block_ = 0;   // its block
  DigestBuilder payload_;
  DigestBuilder rest_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_FILE_DIGEST_CHECK_H_
