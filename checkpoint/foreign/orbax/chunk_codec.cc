// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/chunk_codec.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/crc32c.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/blosc_chunk.h"
#include "fsdp/checkpoint/foreign/orbax/zlib_stream.h"
#include "fsdp/checkpoint/foreign/orbax/zstd_frame.h"

namespace fsdp {
namespace {

// The elements must fill `out` exactly: a chunk of another size is damage, whatever its codec.
absl::Status Decompress(Compressor compressor, std::string_view stored, absl::Span<std::byte> out) {
  switch (compressor) {
    case Compressor::kZstd:
      return InflateZstd(stored, out);
    case Compressor::kZlib:
      return InflateZlib(stored, out);
    case Compressor::kBlosc:
      return DecodeBlosc(stored, out);
    case Compressor::kNone:
      break;
  }
  if (stored.size() != out.size()) {
    return absl::DataLossError(absl::StrCat("it has ", stored.size(), " bytes, expected ", out.size()));
  }
  std::copy_n(reinterpret_cast<const std::byte*>(stored.data()), stored.size(), out.data());
  return absl::OkStatus();
}

int64_t BytesToCompress(const ChunkCodec& codec, int64_t nbytes) {
  return nbytes + (codec.crc_of_elements ? kCrc32cBytes : 0);
}

}  // namespace

absl::Status TakeCrc32c(std::string_view& bytes) {
  if (bytes.size() < kCrc32cBytes) return absl::DataLossError("it is too short for its CRC32C");
  const std::string_view crc = bytes.substr(bytes.size() - kCrc32cBytes);
  bytes.remove_suffix(kCrc32cBytes);
  uint32_t recorded = 0;
  for (int i = 3; i >= 0; --i) recorded = recorded << 8 | static_cast<unsigned char>(crc[i]);
  const uint32_t found = Crc32c(bytes);
  if (found == recorded) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("its CRC32C is ", absl::Hex(found, absl::kZeroPad8), " != recorded ",
                                          absl::Hex(recorded, absl::kZeroPad8)));
}

// Undone in the reverse order of writing: the CRC of what is stored, the compressor, the CRC of the elements.
absl::Status DecodeChunk(const ChunkCodec& codec, std::string_view stored, absl::Span<std::byte> out) {
  if (codec.crc_of_stored) FSDP_RETURN_IF_ERROR(TakeCrc32c(stored));
  if (!codec.crc_of_elements) return Decompress(codec.compressor, stored, out);
  std::string bytes(out.size() + kCrc32cBytes, '\0');
  FSDP_RETURN_IF_ERROR(
      Decompress(codec.compressor, stored, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
  std::string_view elements = bytes;
  FSDP_RETURN_IF_ERROR(TakeCrc32c(elements));
  std::copy_n(reinterpret_cast<const std::byte*>(elements.data()), elements.size(), out.data());
  return absl::OkStatus();
}

// A bound by the best ratio that a codec can reach, so that a few bytes cannot claim a chunk of gigabytes.
int64_t LeastStoredBytes(const ChunkCodec& codec, int64_t nbytes) {
  const int64_t crc = codec.crc_of_stored ? kCrc32cBytes : 0;
  const int64_t whole = BytesToCompress(codec, nbytes);
  switch (codec.compressor) {
    case Compressor::kNone:
      return whole + crc;
    case Compressor::kZstd:
      return whole / kMaxZstdRatio + crc;
    case Compressor::kZlib:
      return whole / kMaxZlibRatio + crc;
    case Compressor::kBlosc:
      return whole / kMaxZstdRatio + kBloscHeaderBytes + crc;  // no codec in it makes more
  }
  return 0;
}

// Bytes that do not compress are stored with a little overhead.
int64_t MostStoredBytes(const ChunkCodec& codec, int64_t nbytes) {
  const int64_t crc = codec.crc_of_stored ? kCrc32cBytes : 0;
  const int64_t whole = BytesToCompress(codec, nbytes);
  return whole + crc + (codec.compressor == Compressor::kNone ? 0 : whole / 64 + 4096);
}

}  // namespace fsdp
