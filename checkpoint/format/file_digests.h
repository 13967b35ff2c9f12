// SPDX-License-Identifier: Apache-2.0
//
// CheckFileDigests: all bytes of one file against what a manifest or a record says of it.
#ifndef FSDP_CHECKPOINT_FORMAT_FILE_DIGESTS_H_
#define FSDP_CHECKPOINT_FORMAT_FILE_DIGESTS_H_

#include "absl/status/status.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// kDataLoss, naming the file and its first bytes that differ, unless `file` is `stored`, size and every digest.
absl::Status CheckFileDigests(const File& file, const StoredFile& stored, ThreadPool& pool);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMAT_FILE_DIGESTS_H_
