// SPDX-License-Identifier: Apache-2.0
//
// Two ways to read. Read serves one value at a time in the calling thread, for texts, diff and statistics. ReadBlocks
// serves a whole load: many blocks in flight, each with all its wanted pieces.
//
//   ReadBlocks: blocks -> runs -> per run   page cache has all of it -> DeliverCached: copy and digest tile by tile
//                                           otherwise -> ReadQueue   -> Deliver: digest, then copy or convert
//
// The number of passes over each byte determines the speed of a load. A block that is wanted whole, in its stored dtype
// and in one place, is read to that place (InPlace) or digested while it is copied (CopyAndDigest): one pass. All
// others take one pass for the digest and another for the copies of the pieces; from the page cache both work tile by
// tile, in the core's own cache. Bytes that fail their digest may therefore be in the caller's memory already; the
// contract of Read allows this after an error.
#include "fsdp/checkpoint/native/read/verified_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/streaming_copy.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/record.h"
#include "fsdp/checkpoint/storage/cached_pages.h"
#include "fsdp/checkpoint/storage/nearby_reads.h"
#include "fsdp/checkpoint/storage/parallel_reads.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/read_queue.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// Well under the customary limit of 1024 descriptors.
constexpr size_t kMaxOpenFiles = 256;

// Small enough to stay in a core's own cache between the copy and the digest.
constexpr int64_t kTileBytes = 256 * 1024;

// Enough for the direct I/O of any common disk.
constexpr uintptr_t kDirectAlignment = 512;

// The extent of `file` that holds `range`. Dies if no extent does: decoding a manifest has checked this.
const StoredExtent& ExtentOf(const StoredFile& file, const ByteRange& range) {
  const auto after =
      std::upper_bound(file.extents.begin(), file.extents.end(), range.offset,
                       [](int64_t offset, const StoredExtent& extent) { return offset < extent.range.offset; });
  Check(after != file.extents.begin() && range.end() <= std::prev(after)->range.end(), "a range outside of extents");
  return *std::prev(after);
}

// True when the whole block is wanted, in one place and in its stored dtype.
bool IsWhole(const BlockRead& block) {
  const BlockPiece& first = block.pieces.front();
  return block.pieces.size() == 1 && first.range == block.range && first.stored == first.wanted;
}

// True when all pieces are wanted in their stored dtype.
bool IsStored(const BlockRead& block) {
  return std::all_of(block.pieces.begin(), block.pieces.end(),
                     [](const BlockPiece& piece) { return piece.stored == piece.wanted; });
}

// Copies the parts of `pieces` in `tile`, which begins at `offset` of the file.
void CopyPieces(const std::vector<BlockPiece>& pieces, int64_t offset, absl::Span<const std::byte> tile) {
  for (const BlockPiece& piece : pieces) {
    const int64_t from = std::max(piece.range.offset, offset);
    const int64_t to = std::min(piece.range.end(), offset + static_cast<int64_t>(tile.size()));
    if (from < to) StreamingCopy(piece.out + (from - piece.range.offset), tile.data() + (from - offset), to - from);
  }
}

// Copies the pieces from the page cache to their places; false if it lacks some bytes.
bool CopyCachedPieces(int fd, const BlockRead& block) {
  return std::all_of(block.pieces.begin(), block.pieces.end(), [&](const BlockPiece& piece) {
    return CopyCached(fd, piece.range.offset, absl::MakeSpan(piece.out, piece.range.nbytes)) == piece.range.nbytes;
  });
}

// The memory that `range`, the bytes of `run`, can be read to without a copy: null unless all blocks are wanted whole,
// at consecutive addresses, and the range and the address are aligned for direct I/O.
std::byte* InPlace(absl::Span<const BlockRead> run, const ByteRange& range) {
  std::byte* const out = run.front().pieces.front().out;
  if (WholePages(range) != range || reinterpret_cast<uintptr_t>(out) % kDirectAlignment != 0) return nullptr;
  for (const BlockRead& block : run) {
    if (!IsWhole(block) || block.pieces.front().out != out + (block.range.offset - range.offset)) return nullptr;
  }
  return out;
}

}  // namespace

VerifiedReader::VerifiedReader(FileSystem& files, std::string directory, const Manifest& manifest, Digests digests)
    : files_(files),
      directory_(std::move(directory)),
      manifest_(manifest),
      verify_(digests == Digests::kCompare),
      open_(manifest.files.size()),
      checked_(manifest.files.size()) {}

absl::StatusOr<std::shared_ptr<const File>> VerifiedReader::Open(int index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (open_[index] != nullptr) return open_[index];
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<File>> {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, OpenStoredFile(files_, directory_, manifest_, index));
    if (!checked_[index]) FSDP_RETURN_IF_ERROR(CheckRecord(*file, manifest_, index));
    return file;
  };
  absl::StatusOr<std::unique_ptr<File>> file = open();
  if (!file.ok()) {
    return WithMessage(file.status(), JoinPath(directory_, std::string(file.status().message())));
  }
  checked_[index] = true;
  if (order_.size() == kMaxOpenFiles) {
    open_[order_.front()] = nullptr;  // threads that still read from the file hold a reference
    order_.pop_front();
  }
  order_.push_back(index);
  open_[index] = std::make_shared<NearbyReads>(*std::move(file));
  return open_[index];
}

std::shared_ptr<const VerifiedReader::PartialBlock> VerifiedReader::LastPartial() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return partial_;
}

absl::Status VerifiedReader::ReadBlock(const File& file, int index, const StoredExtent& extent, int64_t block,
                                       const ByteRange& wanted, std::byte* out, absl::FunctionRef<std::string()> what) {
  const ByteRange range = extent.block(block);
  const int64_t from = std::max(range.offset, wanted.offset);
  const int64_t to = std::min(range.end(), wanted.end());
  std::byte* const target = out + (from - wanted.offset);
  // A block that is wanted whole is read to its place and compared there; from other blocks only a part is copied.
  const bool is_whole = to - from == range.nbytes;
  if (!is_whole) {
    const std::shared_ptr<const PartialBlock> last = LastPartial();
    if (last != nullptr && last->file == index && last->offset == range.offset) {
      std::memcpy(target, last->bytes.data() + (from - range.offset), to - from);
      return absl::OkStatus();
    }
  }
  auto partial = std::make_shared<PartialBlock>(PartialBlock{index, range.offset, buffers_.Take()});
  std::byte* const bytes = is_whole ? target : partial->bytes.data();
  FSDP_RETURN_IF_ERROR(file.Read(range.offset, absl::MakeSpan(bytes, range.nbytes)));
  FSDP_RETURN_IF_ERROR(Compare(index, extent, block, DigestOf(absl::MakeConstSpan(bytes, range.nbytes)), what));
  if (is_whole) return absl::OkStatus();
  std::memcpy(target, bytes + (from - range.offset), to - from);
  const std::lock_guard<std::mutex> lock(mutex_);
  partial_ = std::move(partial);
  return absl::OkStatus();
}

absl::Status VerifiedReader::ReadBlocks(const std::vector<BlockRead>& blocks, ThreadPool& pool, const PieceName& what) {
  // A digest covers the whole block; if digests are ignored, the wanted bytes suffice.
  const std::vector<BlockRun> runs = JoinBlocks(blocks, verify_ ? BlockParts::kWhole : BlockParts::kPieces);
  const auto begin = [&](int64_t i) -> absl::StatusOr<LargeRead> {
    const BlockRun& run = runs[i];
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<const File> file, Open(blocks[run.first].file));
    FSDP_ASSIGN_OR_RETURN(const bool is_delivered, DeliverCached(*file, run, blocks, what));
    if (is_delivered) return LargeRead{};
    return LargeRead{std::move(file), run.range,
                     InPlace(absl::MakeConstSpan(blocks).subspan(run.first, run.count), run.range)};
  };
  const auto done = [&](int64_t i, const absl::StatusOr<const std::byte*>& bytes) -> absl::Status {
    FSDP_RETURN_IF_ERROR(bytes.status());
    const BlockRun& run = runs[i];
    for (size_t k = run.first; k < run.first + run.count; ++k) {
      FSDP_RETURN_IF_ERROR(Deliver(blocks[k], *bytes, run.range.offset, what));
    }
    return absl::OkStatus();
  };
  return ReadInParallel(pool, static_cast<int64_t>(runs.size()), begin, done);
}

absl::Status VerifiedReader::Compare(int file, const StoredExtent& extent, int64_t block, const Digest& digest,
                                     absl::FunctionRef<std::string()> what) const {
  const Digest& recorded = extent.digests[block];
  if (digest == recorded) return absl::OkStatus();
  return absl::DataLossError(DamagedBlock(JoinPath(directory_, manifest_.files[file].name), extent.block(block),
                                          absl::StrCat(what(), ", block ", block), digest, recorded));
}

absl::Status VerifiedReader::Compare(const BlockRead& block, const Digest& digest, const PieceName& what) const {
  const StoredExtent& extent = manifest_.files[block.file].extents[block.extent];
  return Compare(block.file, extent, block.block, digest, [&] { return what(block.pieces.front()); });
}

absl::StatusOr<bool> VerifiedReader::DeliverCached(const File& file, const BlockRun& run,
                                                   const std::vector<BlockRead>& blocks, const PieceName& what) {
  const int fd = file.descriptors().cached;
  const auto wanted = absl::MakeConstSpan(blocks).subspan(run.first, run.count);
  if (fd < 0 || !std::all_of(wanted.begin(), wanted.end(), IsStored)) return false;
  if (!SeemsCached(fd, run.range.offset, run.range.nbytes)) return false;
  for (const BlockRead& block : wanted) {
    FSDP_ASSIGN_OR_RETURN(const bool is_delivered,
                          verify_ ? DeliverCachedBlock(fd, block, what) : CopyCachedPieces(fd, block));
    // The cache has dropped a page since SeemsCached: the caller reads the whole run again by the other way.
    if (!is_delivered) return false;
  }
  return true;
}

absl::StatusOr<bool> VerifiedReader::DeliverCachedBlock(int fd, const BlockRead& block, const PieceName& what) {
  const bool is_whole = IsWhole(block);
  std::optional<BlockBuffers::Lease> buffer;
  if (!is_whole) buffer.emplace(buffers_.Take());
  DigestBuilder digest;
  for (int64_t done = 0; done < block.range.nbytes; done += kTileBytes) {
    std::byte* const to = is_whole ? block.pieces.front().out + done : buffer->data();
    const auto tile = absl::MakeSpan(to, std::min(kTileBytes, block.range.nbytes - done));
    if (CopyCached(fd, block.range.offset + done, tile) < static_cast<int64_t>(tile.size())) return false;
    digest.Update(tile);
    if (!is_whole) CopyPieces(block.pieces, block.range.offset + done, tile);
  }
  FSDP_RETURN_IF_ERROR(Compare(block, digest.Finish(), what));
  return true;
}

absl::Status VerifiedReader::Deliver(const BlockRead& block, const std::byte* read, int64_t read_offset,
                                     const PieceName& what) const {
  const BlockPiece& first = block.pieces.front();
  bool is_delivered = false;
  if (verify_) {
    const std::byte* const bytes = read + (block.range.offset - read_offset);
    is_delivered = IsWhole(block);
    DigestBuilder digest;
    if (is_delivered && first.out != bytes) {
      CopyAndDigest(first.out, bytes, block.range.nbytes, digest);
    } else {
      digest.Update(absl::MakeConstSpan(bytes, block.range.nbytes));
    }
    FSDP_RETURN_IF_ERROR(Compare(block, digest.Finish(), what));
  }
  if (is_delivered) return absl::OkStatus();
  for (const BlockPiece& piece : block.pieces) {
    const std::byte* const from = read + (piece.range.offset - read_offset);
    if (from == piece.out) continue;
    if (piece.stored == piece.wanted) {
      StreamingCopy(piece.out, from, piece.range.nbytes);
      continue;
    }
    const absl::Status converted =
        Convert(piece.stored, from, piece.wanted, piece.out, piece.range.nbytes / SizeOf(piece.stored));
    if (!converted.ok()) return Annotate(converted, what(piece));
  }
  return absl::OkStatus();
}

absl::Status VerifiedReader::Read(int index, const ByteRange& range, std::byte* out,
                                  absl::FunctionRef<std::string()> what) {
  if (range.nbytes == 0) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, Open(index));
  if (!verify_) return file->Read(range.offset, absl::MakeSpan(out, range.nbytes));
  const StoredFile& stored = manifest_.files[index];
  const StoredExtent& extent = ExtentOf(stored, range);
  const int64_t last = (range.end() - 1 - extent.range.offset) / extent.block_bytes;
  for (int64_t block = (range.offset - extent.range.offset) / extent.block_bytes; block <= last; ++block) {
    FSDP_RETURN_IF_ERROR(ReadBlock(*file, index, extent, block, range, out, what));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
