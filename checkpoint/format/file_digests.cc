// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/format/file_digests.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/save/payload_writer.h"
#include "checkpoint/storage/block_buffers.h"

namespace fsdp {
namespace {

absl::Status CheckRest(const File& file, const StoredFile& stored, BlockBuffers& buffers) {
  std::vector<ByteRange> taken;
  for (const StoredExtent& extent : stored.extents) taken.push_back(extent.range);
  DigestBuilder digest;
  const BlockBuffers::Lease buffer = buffers.Take();
  for (const ByteRange& range : RangesBetween(taken, stored.nbytes)) {
    for (int64_t at = range.offset; at < range.end(); at += kBlockBytes) {
      const auto bytes = absl::MakeSpan(buffer.data(), std::min(kBlockBytes, range.end() - at));
      RETURN_IF_ERROR(file.Read(at, bytes));
      digest.Update(bytes);
    }
  }
  if (digest.Finish() == stored.rest_digest) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(stored.name, ", bytes outside of payload: digest ", digest.Finish().ToHex(),
                                          " != recorded ", stored.rest_digest.ToHex()));
}

}  // namespace

absl::Status CheckFileDigests(const File& file, const StoredFile& stored, ThreadPool& pool) {
  ASSIGN_OR_RETURN(const int64_t size, file.Size());
  if (size != stored.nbytes) {
    return absl::DataLossError(absl::StrCat(stored.name, " has ", size, " bytes, expected ", stored.nbytes));
  }
  BlockBuffers buffers;
  RETURN_IF_ERROR(CheckRest(file, stored, buffers));
  for (const StoredExtent& extent : stored.extents) {
    RETURN_IF_ERROR(pool.ParallelFor(static_cast<int64_t>(extent.digests.size()), [&](int64_t block) -> absl::Status {
      const int64_t begin = extent.range.offset + block * kBlockBytes;
      const ByteRange range = {begin, std::min(kBlockBytes, extent.range.end() - begin)};
      const BlockBuffers::Lease buffer = buffers.Take();
      const auto bytes = absl::MakeSpan(buffer.data(), range.nbytes);
      RETURN_IF_ERROR(file.Read(range.offset, bytes));
      const Digest digest = DigestOf(bytes);
      if (digest == extent.digests[block]) return absl::OkStatus();
      return absl::DataLossError(
          DamagedBlock(stored.name, range, absl::StrCat("block ", block), digest, extent.digests[block]));
    }));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
