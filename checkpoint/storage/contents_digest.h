// SPDX-License-Identifier: Apache-2.0
//
// The contents of files, as one text that is equal for copies of the same files, wherever they are. For comparisons
// between hosts: reads a bounded part of large files, so it does not replace a verification.
#ifndef FSDP_CHECKPOINT_STORAGE_CONTENTS_DIGEST_H_
#define FSDP_CHECKPOINT_STORAGE_CONTENTS_DIGEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The blocks of larger contents that are digested, and the size of each.
inline constexpr int64_t kSampledBlocks = 64;
inline constexpr int64_t kSampledBlockBytes = int64_t{1} << 20;

// The part of `nbytes` bytes that a digest covers: all of at most 64 MiB; of more, kSampledBlocks blocks at equal
// distances. The first block is at 0 and the last ends at `nbytes`, so a change of length moves the others.
std::vector<ByteRange> DigestedRanges(int64_t nbytes);

// "2 files of 81920 bytes, digest of all bytes 3f..." for the files `paths` in this order. Of more than 64 MiB: "...,
// digest of 64 MiB of them 3f...", which covers sizes, both ends of each file, and DigestedRanges of the files one
// after the other. Blocks while it reads. Errors of opening and reading.
absl::StatusOr<std::string> DescribeContents(FileSystem& files, const std::vector<std::string>& paths);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_CONTENTS_DIGEST_H_
