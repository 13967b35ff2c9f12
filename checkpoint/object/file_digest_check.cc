// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/file_digest_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::Status FileDigestCheck::Update(absl::Span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) > stored_.nbytes - offset_) {
    return absl::DataLossError(absl::StrCat(stored_.name, ": more than its ", stored_.nbytes, " bytes"));
  }
  // Invariant: extents before extent_ are complete, offset_ is in block block_ of extent_ or in the rest before it, and
  // payload_ has the digest of that block so far. Each turn takes bytes up to the next border: the beginning of an
  // extent, or the end of a block.
  while (!bytes.empty()) {
    const bool has_extent = extent_ < stored_.extents.size();
    const int64_t begin = has_extent ? stored_.extents[extent_].range.offset : stored_.nbytes;
    if (offset_ < begin) {
      const absl::Span<const std::byte> rest = bytes.subspan(0, std::min<int64_t>(bytes.size(), begin - offset_));
      rest_.Update(rest);
      offset_ += static_cast<int64_t>(rest.size());
      bytes.remove_prefix(rest.size());
      continue;
    }
    const StoredExtent& extent = stored_.extents[extent_];
    const ByteRange block = extent.block(block_);
    const absl::Span<const std::byte> part = bytes.subspan(0, std::min<int64_t>(bytes.size(), block.end() - offset_));
    payload_.Update(part);
    offset_ += static_cast<int64_t>(part.size());
    bytes.remove_prefix(part.size());
    if (offset_ < block.end()) continue;
    const Digest digest = payload_.Finish();
    // Reported at the end of its block, before the caller writes or uses more of the file.
    payload_.Reset();
    if (digest != extent.digests[block_]) {
      return absl::DataLossError(
          DamagedBlock(stored_.name, block, absl::StrCat("block ", block_), digest, extent.digests[block_]));
    }
    if (++block_ == extent.blocks()) {
      ++extent_;
      block_ = 0;
    }
  }
  return absl::OkStatus();
}

absl::Status FileDigestCheck::Finish() const {
  if (offset_ != stored_.nbytes) {
    return absl::DataLossError(absl::StrCat(stored_.name, ": ", offset_, " bytes, expected ", stored_.nbytes));
  }
  const Digest digest = rest_.Finish();
  if (digest == stored_.rest_digest) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(stored_.name, ", bytes outside of payload: digest ", digest.ToHex(),
                                          " != recorded ", stored_.rest_digest.ToHex()));
}

}  // namespace fsdp
