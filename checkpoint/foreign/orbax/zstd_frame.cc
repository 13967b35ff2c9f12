// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/zstd_frame.h"

#include <zstd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

absl::Status Damaged(size_t code) {
  return absl::DataLossError(absl::StrCat("its zstd frame cannot be read: ", ZSTD_getErrorName(code)));
}

struct FreeStream {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

}  // namespace

absl::Status InflateZstd(std::string_view frames, absl::Span<std::byte> out) {
  const size_t nbytes = ZSTD_decompress(out.data(), out.size(), frames.data(), frames.size());
  if (ZSTD_isError(nbytes) != 0) return Damaged(nbytes);
  if (nbytes == out.size()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("its zstd frame has ", nbytes, " bytes, expected ", out.size()));
}

// By steps, since a frame need not state its size, and what it states may be a lie.
absl::StatusOr<std::string> InflateZstdUpTo(std::string_view frames, int64_t most) {
  constexpr size_t kStepBytes = size_t{1} << 17;
  const std::unique_ptr<ZSTD_DStream, FreeStream> stream(ZSTD_createDStream());
  if (stream == nullptr) return absl::ResourceExhaustedError("no memory for a stream of zstd");
  std::string contents;
  ZSTD_inBuffer in = {frames.data(), frames.size(), 0};
  while (true) {
    const size_t before = contents.size();
    contents.resize(before + kStepBytes);
    ZSTD_outBuffer out = {contents.data() + before, kStepBytes, 0};
    const size_t hint = ZSTD_decompressStream(stream.get(), &out, &in);  // 0 at the end of a frame
    contents.resize(before + out.pos);
    if (ZSTD_isError(hint) != 0) return Damaged(hint);
    if (static_cast<int64_t>(contents.size()) > most) {
      return absl::ResourceExhaustedError(absl::StrCat("its zstd frame has more than ", most, " bytes"));
    }
    if (in.pos < in.size) continue;
    if (hint == 0) return contents;
    // Less came out than fits, so the stream keeps nothing back.
    if (out.pos < kStepBytes) return absl::DataLossError("its zstd frame is truncated");
  }
}

}  // namespace fsdp
