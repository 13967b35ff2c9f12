// SPDX-License-Identifier: Apache-2.0
//
// The sizes of all entries are known before any element is, so the archive is laid out first (zip_layout.h) and then
// filled block by block, by several threads. A local header contains the CRC of the bytes after it, which may span many
// blocks: blocks leave zeros in the places of headers, and headers and directory are written once every CRC is known.
//
//   | header 0 | npy header | elements of "a" ...... | header 1 | npy header | elements of "b" | directory |
//   |<------ block 0 ------>|<------ block 1 ------>|<------ block 2 ------>|
#include "fsdp/checkpoint/foreign/npz/npz_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/foreign/npz/npy_header.h"
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"
#include "fsdp/checkpoint/foreign/zip/zip_directory.h"
#include "fsdp/checkpoint/foreign/zip/zip_layout.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/staged_path.h"
#include "fsdp/checkpoint/storage/write_blocks.h"

namespace fsdp {
namespace {

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

// One tensor, and the .npy header before its elements.
struct NpzMember {
  const StateKey* key = nullptr;  // in the contents
  std::string header;
  int64_t element_size = 1;
  int64_t nbytes = 0;  // of the elements

  std::string name() const { return absl::StrCat(key->fqn, ".npy"); }
};

absl::StatusOr<std::vector<NpzMember>> MembersOf(const StateDict& contents) {
  std::vector<NpzMember> members;
  for (const auto& [key, value] : contents.entries()) {
    const auto* const tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr || key.section != StateKey::Section::kModel || contents.aliases.count(key.fqn) != 0) continue;
    NpzMember member = {.key = &key, .header = {}, .element_size = SizeOf(tensor->dtype)};
    const absl::Status named = CheckZipEntryName(member.name());
    if (!named.ok()) return Annotate(named, Describe(key));
    absl::StatusOr<std::string> header = EncodeNpyHeader(tensor->dtype, tensor->shape);
    if (!header.ok()) return Annotate(header.status(), Describe(key));
    member.header = *std::move(header);
    member.nbytes = tensor->shape.numel() * member.element_size;
    members.push_back(std::move(member));
  }
  return members;
}

ZipLayout LayoutOf(const std::vector<NpzMember>& members) {
  std::vector<ZipLayout::Member> entries;
  for (const NpzMember& member : members) {
    entries.push_back({member.name(), static_cast<int64_t>(member.header.size()) + member.nbytes});
  }
  return ZipLayout(std::move(entries));
}

class NpzFiller {
 public:
  NpzFiller(const std::vector<NpzMember>& members, const PayloadReader& read, const FormatWriteOptions& options)
      : members_(members), layout_(LayoutOf(members)), read_(read), options_(options) {
    for (size_t i = 0; i < members_.size(); ++i) {
      const Interval entry = EntryAt(i);
      first_parts_.push_back(part_crcs_.size());
      part_crcs_.resize(part_crcs_.size() + BlockCount(entry.end) - entry.begin / kBlockBytes);
      total_ += members_[i].nbytes;
    }
  }

  const ZipLayout& layout() const { return layout_; }

  // Fills one block of the archive. Several threads call it at the same time, each for another block.
  absl::Status Fill(int64_t begin, absl::Span<std::byte> out) {
    const Interval block = {begin, begin + static_cast<int64_t>(out.size())};
    std::fill(out.begin(), out.end(), std::byte{0});
    for (size_t i = FirstEndingAfter(begin); i < members_.size() && EntryAt(i).begin < block.end; ++i) {
      const Interval part = Intersect(EntryAt(i), block);
      if (part.empty()) continue;
      const absl::Span<std::byte> bytes = out.subspan(part.begin - begin, part.size());
      FSDP_RETURN_IF_ERROR(FillEntry(members_[i], part.begin - EntryAt(i).begin, bytes));
      // No lock: each part belongs to one block, and each block to one thread.
      part_crcs_[first_parts_[i] + (part.begin / kBlockBytes - EntryAt(i).begin / kBlockBytes)] = Crc32(bytes);
    }
    return absl::OkStatus();
  }

  // Writes headers and directory, once all blocks are written.
  absl::Status WriteHeaders(File& file) const {
    std::vector<uint32_t> crcs;
    for (size_t i = 0; i < members_.size(); ++i) {
      crcs.push_back(CrcOf(i));
      FSDP_RETURN_IF_ERROR(file.Write(layout_.header_offset(i), Bytes(layout_.LocalHeader(i, crcs.back()))));
    }
    return file.Write(layout_.directory_offset(), Bytes(layout_.Directory(crcs)));
  }

 private:
  // The bytes of entry `i`, as an interval of the file.
  Interval EntryAt(size_t i) const {
    const int64_t begin = layout_.payload_offset(i);
    return {begin, begin + layout_.members()[i].nbytes};
  }

  size_t FirstEndingAfter(int64_t begin) const {
    size_t low = 0;
    size_t high = members_.size();
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      EntryAt(middle).end <= begin ? low = middle + 1 : high = middle;
    }
    return low;
  }

  // Writes the bytes from `offset` of an entry: its header, then elements. Blocks and elements both begin at multiples
  // of 64 bytes, so no element is cut.
  absl::Status FillEntry(const NpzMember& member, int64_t offset, absl::Span<std::byte> out) {
    const auto header_bytes = static_cast<int64_t>(member.header.size());
    if (offset < header_bytes) {
      const auto copied = std::min<int64_t>(header_bytes - offset, std::ssize(out));
      std::memcpy(out.data(), member.header.data() + offset, copied);
      offset += copied;
      out.remove_prefix(copied);
    }
    if (out.empty()) return absl::OkStatus();
    const Interval bytes = {offset - header_bytes, offset - header_bytes + std::ssize(out)};
    FSDP_RETURN_IF_ERROR(
        read_(*member.key, {bytes.begin / member.element_size, bytes.end / member.element_size}, out.data()));
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ += bytes.size();
    if (options_.progress) options_.progress(done_, total_);
    return absl::OkStatus();
  }

  uint32_t CrcOf(size_t i) const {
    const Interval entry = EntryAt(i);
    // In order: CombineCrc32 joins a part's CRC to the CRC of all parts before it.
    uint32_t crc = 0;
    size_t part = first_parts_[i];
    for (int64_t begin = entry.begin; begin < entry.end;) {
      const int64_t end = std::min(entry.end, (begin / kBlockBytes + 1) * kBlockBytes);
      crc = CombineCrc32(crc, part_crcs_[part++], end - begin);
      begin = end;
    }
    return crc;
  }

  const std::vector<NpzMember>& members_;
  const ZipLayout layout_;
  const PayloadReader& read_;
  const FormatWriteOptions& options_;
  std::vector<size_t> first_parts_;  // of each member, in part_crcs_
  std::vector<uint32_t> part_crcs_;  // of each member's bytes in each block; each is set by one thread
  int64_t total_ = 0;

  std::mutex mutex_;
  int64_t done_ = 0;  // guarded by mutex_
};

absl::Status FillArchive(File& file, const std::vector<NpzMember>& members, const PayloadReader& read,
                         const FormatWriteOptions& options) {
  NpzFiller filler(members, read, options);
  const BlockWriteShape shape = ShapeOfBlockWrites(options.buffer_bytes, options.io_threads);
  const int64_t threads = std::clamp<int64_t>(BlockCount(filler.layout().nbytes()), 1, shape.threads);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(static_cast<int>(threads), "npz"));
  const BlockFiller fill = [&](int64_t begin, absl::Span<std::byte> out) { return filler.Fill(begin, out); };
  FSDP_RETURN_IF_ERROR(WriteBlocks(file, filler.layout().nbytes(), fill, *pool, shape.queue_depth));
  FSDP_RETURN_IF_ERROR(filler.WriteHeaders(file));
  return file.Sync();
}

}  // namespace

absl::Status WriteNpz(const std::string& path, const StateDict& contents, const PayloadReader& read,
                      const FormatWriteOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<NpzMember> members, MembersOf(contents));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateFile(*options.file_system, path, {.overwrite = options.overwrite}));
  FSDP_RETURN_IF_ERROR(FillArchive(staged->file(), members, read, options));
  return staged->Commit();
}

}  // namespace fsdp
