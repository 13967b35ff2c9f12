// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/blosc_chunk.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/lz4_block.h"
#include "fsdp/checkpoint/foreign/orbax/zlib_stream.h"
#include "fsdp/checkpoint/foreign/orbax/zstd_frame.h"

namespace fsdp {
namespace {

// Bits of the flags; the codec is in the upper three.
constexpr unsigned kByteShuffle = 1;
constexpr unsigned kIsCopy = 2;
constexpr unsigned kBitShuffle = 4;
constexpr unsigned kIsNotSplit = 16;
constexpr unsigned kLz4 = 1;
constexpr unsigned kZlib = 3;
constexpr unsigned kZstd = 4;

constexpr size_t kMaxStreams = 16;         // a block of larger elements is one stream
constexpr size_t kLeastStreamBytes = 128;  // of elements: a smaller block is one stream
constexpr size_t kBitShuffleElements = 8;

// The 16 bytes at the beginning: version, version of the codec, flags, bytes of an element, then three numbers of four
// bytes: elements' bytes, bytes of a block, bytes of the chunk. Behind it is the offset of each block. Source: c-blosc,
// README_CHUNK_FORMAT.rst.
struct Header {
  unsigned flags = 0;
  size_t element_bytes = 1;
  size_t nbytes = 0;
  size_t block_bytes = 0;

  unsigned codec() const { return flags >> 5; }
};

size_t U32(std::string_view bytes, size_t at) {
  size_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= size_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return value;
}

absl::Status Damaged() { return absl::DataLossError("its blosc chunk is damaged"); }

// A stream that did not compress is stored as it is, which only its size says.
absl::Status Decompress(unsigned codec, std::string_view stream, absl::Span<std::byte> out) {
  if (stream.size() == out.size()) {
    std::memcpy(out.data(), stream.data(), stream.size());
    return absl::OkStatus();
  }
  switch (codec) {
    case kLz4:
      return InflateLz4(stream, out);
    case kZlib:
      return InflateZlib(stream, out);
    case kZstd:
      return InflateZstd(stream, out);
    default:
      return absl::UnimplementedError(absl::StrCat("its blosc chunk is compressed with ",
                                                   codec == 0   ? "blosclz"
                                                   : codec == 2 ? "snappy"
                                                                : absl::StrCat("codec ", codec),
                                                   ", expected zstd, lz4 or zlib: save it with one of these"));
  }
}

// The shuffle puts the first bytes of all elements first, then the second ones, and so on; bytes that make no element
// stay at the end.
void UnshuffleBytes(absl::Span<const std::byte> in, size_t size, absl::Span<std::byte> out) {
  const size_t count = in.size() / size;
  for (size_t b = 0; b < size; ++b) {
    for (size_t i = 0; i < count; ++i) out[i * size + b] = in[b * count + i];
  }
  std::copy(in.begin() + count * size, in.end(), out.begin() + count * size);
}

// Bit k of byte b of all elements, then bit k + 1, ...: a byte has the bit of eight elements. A block whose number of
// elements is not a multiple of eight is not shuffled.
void UnshuffleBits(absl::Span<const std::byte> in, size_t size, absl::Span<std::byte> out) {
  const size_t count = in.size() / size;
  if (count % kBitShuffleElements != 0) {
    std::copy(in.begin(), in.end(), out.begin());
    return;
  }
  const size_t row = count / 8;  // bytes with one bit of each element
  std::fill(out.begin(), out.begin() + count * size, std::byte{0});
  for (size_t b = 0; b < size; ++b) {
    for (size_t k = 0; k < 8; ++k) {
      const std::byte* const bits = in.data() + (b * 8 + k) * row;
      for (size_t i = 0; i < count; ++i) {
        const auto bit = (static_cast<unsigned>(bits[i / 8]) >> (i % 8)) & 1;
        out[i * size + b] |= static_cast<std::byte>(bit << k);
      }
    }
  }
  std::copy(in.begin() + count * size, in.end(), out.begin() + count * size);
}

// Block `block` of `chunk`, before the shuffle is undone, to `out`.
absl::Status DecodeBlock(const Header& header, std::string_view chunk, size_t offset, absl::Span<std::byte> out) {
  // The last block may be smaller, and then it is one stream.
  const bool is_split = (header.flags & kIsNotSplit) == 0 && header.element_bytes <= kMaxStreams &&
                        header.block_bytes / header.element_bytes >= kLeastStreamBytes &&
                        out.size() == header.block_bytes;
  const size_t streams = is_split ? header.element_bytes : 1;
  const size_t stream_bytes = out.size() / streams;
  if (stream_bytes * streams != out.size()) return Damaged();
  for (size_t i = 0; i < streams; ++i) {
    if (offset > chunk.size() || chunk.size() - offset < 4) return Damaged();
    const size_t nbytes = U32(chunk, offset);
    offset += 4;
    if (nbytes > chunk.size() - offset) return Damaged();
    FSDP_RETURN_IF_ERROR(
        Decompress(header.codec(), chunk.substr(offset, nbytes), out.subspan(i * stream_bytes, stream_bytes)));
    offset += nbytes;
  }
  return absl::OkStatus();
}

}  // namespace

// Every offset and size is compared with the chunk before it is used; blocks are decoded one after the other, since
// chunks are read on several threads already.
absl::Status DecodeBlosc(std::string_view chunk, absl::Span<std::byte> out) {
  if (chunk.size() < kBloscHeaderBytes) return Damaged();
  const auto version = static_cast<unsigned char>(chunk[0]);
  if (version < 1 || version > 2) {
    return absl::UnimplementedError(absl::StrCat("its blosc chunk has version ", version, ", expected 1 or 2"));
  }
  const Header header = {.flags = static_cast<unsigned char>(chunk[2]),
                         .element_bytes = std::max<size_t>(static_cast<unsigned char>(chunk[3]), 1),
                         .nbytes = U32(chunk, 4),
                         .block_bytes = U32(chunk, 8)};
  if (header.nbytes != out.size()) {
    return absl::DataLossError(absl::StrCat("its blosc chunk has ", header.nbytes, " bytes, expected ", out.size()));
  }
  if (U32(chunk, 12) != chunk.size()) return Damaged();
  if (out.empty()) return absl::OkStatus();
  if ((header.flags & kIsCopy) != 0) {
    if (chunk.size() - kBloscHeaderBytes != out.size()) return Damaged();
    std::memcpy(out.data(), chunk.data() + kBloscHeaderBytes, out.size());
    return absl::OkStatus();
  }
  if (header.block_bytes == 0 || header.block_bytes > std::max(out.size(), size_t{1})) return Damaged();
  const size_t blocks = (out.size() + header.block_bytes - 1) / header.block_bytes;
  if (blocks > (chunk.size() - kBloscHeaderBytes) / 4) return Damaged();
  const bool shuffles_bits = (header.flags & kBitShuffle) != 0;
  const bool is_shuffled =
      (shuffles_bits || (header.flags & kByteShuffle) != 0) && (shuffles_bits || header.element_bytes > 1);
  std::string scratch(is_shuffled ? header.block_bytes : 0, '\0');
  for (size_t i = 0; i < blocks; ++i) {
    const absl::Span<std::byte> block = out.subspan(i * header.block_bytes, header.block_bytes);
    const absl::Span<std::byte> shuffled =
        is_shuffled ? absl::MakeSpan(reinterpret_cast<std::byte*>(scratch.data()), block.size()) : block;
    FSDP_RETURN_IF_ERROR(DecodeBlock(header, chunk, U32(chunk, kBloscHeaderBytes + 4 * i), shuffled));
    if (!is_shuffled) continue;
    (shuffles_bits ? UnshuffleBits : UnshuffleBytes)(shuffled, header.element_bytes, block);
  }
  return absl::OkStatus();
}

}  // namespace fsdp
