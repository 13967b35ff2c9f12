// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/zlib_stream.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "absl/cleanup/cleanup.h"

namespace fsdp {

// zlib counts in 32 bits, so both sides are given in parts.
absl::Status InflateZlib(std::string_view stream, absl::Span<std::byte> out) {
  constexpr size_t kMostBytes = std::numeric_limits<uInt>::max() / 2;
  z_stream z = {};
  // zlib recognises either by its header: zarr's "zlib" and "gzip" differ only in it.
  constexpr int kZlibOrGzip = 32 + MAX_WBITS;
  if (inflateInit2(&z, kZlibOrGzip) != Z_OK) return absl::ResourceExhaustedError("no memory for a stream of zlib");
  const absl::Cleanup end = [&] { inflateEnd(&z); };
  std::byte beyond = {};  // where a byte too many would go
  int result = Z_OK;
  size_t used = 0;
  size_t made = 0;
  while (result == Z_OK) {
    const size_t in = std::min(stream.size() - used, kMostBytes);
    const size_t room = std::min(out.size() - made, kMostBytes);
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stream.data() + used));
    z.avail_in = static_cast<uInt>(in);
    z.next_out = reinterpret_cast<Bytef*>(room == 0 ? &beyond : out.data() + made);
    z.avail_out = static_cast<uInt>(std::max<size_t>(room, 1));
    result = inflate(&z, Z_NO_FLUSH);
    used += in - z.avail_in;
    if (room == 0 && z.avail_out == 0) return absl::DataLossError("its zlib stream has more bytes than the chunk");
    made += room == 0 ? 0 : room - z.avail_out;
  }
  if (result != Z_STREAM_END || made != out.size() || used != stream.size()) {
    return absl::DataLossError("its zlib stream is damaged, or has not the size of the chunk");
  }
  return absl::OkStatus();
}

}  // namespace fsdp
