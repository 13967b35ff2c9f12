// SPDX-License-Identifier: Apache-2.0
//
// A file is written block by block (write_blocks.h): a thread fills a block with the parts of the archive inside it,
// including headers, and computes the CRC of each payload part while it is in the cache. Payload is pulled once.
//
//   | header 0 | pickle | header 1 | storage "0" ............... | header 2 | storage "1" | directory |
//   |<------ block 0 ------>|<------ block 1 ------>|<------ block 2 ------>|<----- block 3 ----->|
//
// A header comes before the payload whose CRC it states, and the directory after all of them. If all the payload that a
// header or directory depends on is inside the same block, its text is known when the block is filled (IsInTime).
// Otherwise the block gets zeros there, and the text is written when all blocks are done and all CRCs are known. So
// payload never waits in memory for a CRC, and is never read twice.
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/staged_path.h"
#include "fsdp/checkpoint/storage/write_blocks.h"

namespace fsdp {
namespace {

// Entries that describe the archive, before the storages. torch reads the byte order and the version.
constexpr std::pair<const char*, const char*> kTexts[] = {{"archive/byteorder", "little"}, {"archive/version", "3\n"}};

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

int64_t SizeOf(const TorchStorageSource& storage) { return storage.interval.size() * storage.element_size; }

std::vector<int64_t> SizesOf(const std::vector<TorchStorageSource>& storages) {
  std::vector<int64_t> sizes;
  sizes.reserve(storages.size());
  for (const TorchStorageSource& storage : storages) sizes.push_back(SizeOf(storage));
  return sizes;
}

std::vector<ZipLayout::Member> Members(const std::vector<std::string>& texts,
                                       const std::vector<int64_t>& storage_bytes) {
  std::vector<ZipLayout::Member> members = {{"archive/data.pkl", static_cast<int64_t>(texts[0].size())}};
  for (size_t i = 1; i < texts.size(); ++i)
    members.push_back({kTexts[i - 1].first, static_cast<int64_t>(texts[i].size())});
  for (size_t i = 0; i < storage_bytes.size(); ++i)
    members.push_back({absl::StrCat("archive/data/", i), storage_bytes[i]});
  return members;
}

std::vector<std::string> Texts(std::string pickle) {
  std::vector<std::string> texts = {std::move(pickle)};
  for (const auto& [name, text] : kTexts) texts.emplace_back(text);
  return texts;
}

int64_t BlockOf(int64_t offset) { return offset / kBlockBytes; }

}  // namespace

TorchArchiveForm::TorchArchiveForm(std::string pickle, const std::vector<int64_t>& storage_bytes)
    : texts_(Texts(std::move(pickle))), layout_(Members(texts_, storage_bytes)) {
  for (const std::string& text : texts_) text_crcs_.push_back(Crc32(Bytes(text)));
}

TorchArchivePlan::TorchArchivePlan(int64_t offset, std::string pickle, std::vector<TorchStorageSource> storages)
    : offset_(offset),
      form_(std::make_shared<const TorchArchiveForm>(std::move(pickle), SizesOf(storages))),
      storages_(std::move(storages)) {}

TorchArchivePlan::TorchArchivePlan(int64_t offset, std::shared_ptr<const TorchArchiveForm> form,
                                   std::vector<TorchStorageSource> storages)
    : offset_(offset), form_(std::move(form)), storages_(std::move(storages)) {}

class TorchArchiveWriter {
 public:
  TorchArchiveWriter(File& file, const std::vector<TorchArchivePlan>& archives, const PayloadReader& read,
                     const TorchWriteOptions& options)
      : file_(file), archives_(archives), read_(read), options_(options) {
    size_t members = 0;
    for (const TorchArchivePlan& archive : archives_) members += archive.form_->layout_.members().size();
    segments_.reserve(2 * members + archives_.size());
    for (uint32_t i = 0; i < archives_.size(); ++i) AddSegments(i);
    part_crcs_.resize(parts_);
  }

  absl::Status Run() {
    const BlockWriteShape shape = ShapeOfBlockWrites(options_.buffer_bytes, options_.io_threads);
    const int64_t nbytes = archives_.empty() ? 0 : archives_.back().end();
    const int64_t threads = std::clamp<int64_t>(BlockCount(nbytes), 1, shape.threads);
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                          ThreadPool::Create(static_cast<int>(threads), "torch-writer"));
    const BlockFiller fill = [this](int64_t begin, absl::Span<std::byte> out) { return FillBlock(begin, out); };
    FSDP_RETURN_IF_ERROR(WriteBlocks(file_, nbytes, fill, *pool, shape.queue_depth));
    std::vector<const Segment*> late;
    for (const Segment& segment : segments_) {
      if (segment.kind != Kind::kPayload && !IsInTime(segment)) late.push_back(&segment);
    }
    FSDP_RETURN_IF_ERROR(pool->ParallelFor(static_cast<int64_t>(late.size()), [&](int64_t i) {
      return file_.Write(late[i]->range.begin, Bytes(TextOf(*late[i])));
    }));
    return file_.Sync();
  }

 private:
  enum class Kind : uint8_t { kHeader, kText, kPayload, kDirectory };

  // A part of the file with a single role. The segments cover the file except for the gaps between archives. 32 bytes,
  // because there are two for each tensor.
  struct Segment {
    Interval range;       // bytes of the file
    uint32_t archive;     // in archives_
    uint32_t member;      // index in the archive; for a directory, the number of members
    uint32_t first_part;  // for a payload, its first index into part_crcs_
    Kind kind;
  };

  void AddSegments(uint32_t number) {
    const TorchArchivePlan& archive = archives_[number];
    const ZipLayout& layout = archive.form_->layout_;
    const auto at = [&](int64_t begin, int64_t nbytes) {
      return Interval{archive.offset_ + begin, archive.offset_ + begin + nbytes};
    };
    const size_t texts = archive.form_->texts_.size();
    for (size_t i = 0; i < layout.members().size(); ++i) {
      const Interval payload = at(layout.payload_offset(i), layout.members()[i].nbytes);
      const Interval header = {archive.offset_ + layout.header_offset(i), payload.begin};
      const bool is_text = i < texts;
      const auto member = static_cast<uint32_t>(i);
      segments_.push_back({header, number, member, parts_, Kind::kHeader});
      segments_.push_back({payload, number, member, parts_, is_text ? Kind::kText : Kind::kPayload});
      if (is_text || payload.empty()) continue;
      parts_ += static_cast<uint32_t>(BlockOf(payload.end - 1) - BlockOf(payload.begin) + 1);
      total_ += payload.size();
    }
    const Interval directory = at(layout.directory_offset(), layout.nbytes() - layout.directory_offset());
    const auto members = static_cast<uint32_t>(layout.members().size());
    segments_.push_back({directory, number, members, parts_, Kind::kDirectory});
  }

  // The range of payload whose CRCs the segment states.
  Interval DependsOn(const Segment& segment) const {
    const Segment* const next = &segment + 1;  // for a header: its member
    if (segment.kind == Kind::kHeader) return next->kind == Kind::kPayload ? next->range : Interval();
    if (segment.kind != Kind::kDirectory) return {};
    const size_t storages = archives_[segment.archive].storages_.size();
    const Segment* const first = &segment - 2 * storages + 1;  // the payload of the first storage
    return storages == 0 ? Interval() : Interval{first->range.begin, segment.range.begin};
  }

  // True if the CRCs that the segment states are known as soon as the payload of its block has been read: the segment
  // and all payload that it depends on are in one block.
  bool IsInTime(const Segment& segment) const {
    const Interval payload = DependsOn(segment);
    if (payload.empty()) return true;
    const int64_t block = BlockOf(segment.range.begin);
    return BlockOf(segment.range.end - 1) == block && BlockOf(payload.begin) == block &&
           BlockOf(payload.end - 1) == block;
  }

  absl::Status FillBlock(int64_t begin, absl::Span<std::byte> out) {
    const Interval block = {begin, begin + static_cast<int64_t>(out.size())};
    const auto first = std::partition_point(segments_.begin(), segments_.end(),
                                            [&](const Segment& segment) { return segment.range.end <= begin; });
    const auto last = std::partition_point(first, segments_.end(),
                                           [&](const Segment& segment) { return segment.range.begin < block.end; });
    int64_t filled_payload = 0;
    for (auto segment = first; segment != last; ++segment) {
      const Interval part = Intersect(segment->range, block);
      if (segment->kind != Kind::kPayload || part.empty()) continue;
      FSDP_RETURN_IF_ERROR(FillPayload(*segment, part, out.data() + (part.begin - begin)));
      filled_payload += part.size();
    }
    Report(filled_payload);
    // Texts, now that the block's CRCs are known; zeros between archives and in place of a late text.
    int64_t filled = begin;
    for (auto segment = first; segment != last; ++segment) {
      const Interval part = Intersect(segment->range, block);
      if (part.empty() || (segment->kind != Kind::kPayload && !IsInTime(*segment))) continue;
      std::fill(out.begin() + (filled - begin), out.begin() + (part.begin - begin), std::byte{0});
      filled = part.end;
      if (segment->kind != Kind::kPayload) CopyText(*segment, part, out.data() + (part.begin - begin));
    }
    std::fill(out.begin() + (filled - begin), out.end(), std::byte{0});
    return absl::OkStatus();
  }

  absl::Status FillPayload(const Segment& segment, const Interval& part, std::byte* out) {
    const TorchArchivePlan& archive = archives_[segment.archive];
    const TorchStorageSource& storage = archive.storages_[segment.member - archive.form_->texts_.size()];
    const int64_t first = storage.interval.begin + (part.begin - segment.range.begin) / storage.element_size;
    if (const auto* const literal = std::get_if<std::string>(&storage.elements)) {
      std::memcpy(out, literal->data() + (first - storage.interval.begin) * storage.element_size, part.size());
    } else {
      const Interval elements = {first, first + part.size() / storage.element_size};
      FSDP_RETURN_IF_ERROR(read_(*std::get<const StateKey*>(storage.elements), elements, out));
    }
    part_crcs_[segment.first_part + BlockOf(part.begin) - BlockOf(segment.range.begin)] =
        Crc32(absl::MakeConstSpan(out, part.size()));
    return absl::OkStatus();
  }

  // Once for each block: a block may hold parts of ten thousand storages.
  void Report(int64_t nbytes) {
    if (nbytes == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ += nbytes;
    if (options_.progress) options_.progress(done_, total_);
  }

  // The CRC of a payload whose parts have all been read.
  uint32_t CrcOf(const Segment& payload) const {
    uint32_t crc = 0;
    uint32_t index = payload.first_part;
    for (int64_t begin = payload.range.begin; begin < payload.range.end;) {
      const int64_t end = std::min((BlockOf(begin) + 1) * kBlockBytes, payload.range.end);
      const uint32_t part = part_crcs_[index++];
      // Most payloads are one part, and combining takes longer than the CRC of a few hundred bytes.
      crc = begin == payload.range.begin ? part : CombineCrc32(crc, part, end - begin);
      begin = end;
    }
    return crc;
  }

  // The CRC that a header states. AddSegments puts the payload directly after its header.
  uint32_t CrcOfNext(const Segment& header) const {
    const TorchArchivePlan& archive = archives_[header.archive];
    if (header.member < archive.form_->text_crcs_.size()) return archive.form_->text_crcs_[header.member];
    return CrcOf(*(&header + 1));
  }

  // The bytes of a header or directory whose CRCs are known.
  std::string TextOf(const Segment& segment) const {
    const TorchArchivePlan& archive = archives_[segment.archive];
    if (segment.kind == Kind::kHeader) return archive.form_->layout_.LocalHeader(segment.member, CrcOfNext(segment));
    std::vector<uint32_t> crcs;
    const size_t members = archive.form_->layout_.members().size();
    const Segment* const first = &segment - 2 * members;
    for (size_t i = 0; i < members; ++i) crcs.push_back(CrcOfNext(first[2 * i]));
    return archive.form_->layout_.Directory(crcs);
  }

  void CopyText(const Segment& segment, const Interval& part, std::byte* out) const {
    const int64_t from = part.begin - segment.range.begin;
    const bool is_kept = segment.kind == Kind::kText;
    const std::string generated = is_kept ? std::string() : TextOf(segment);
    const std::string& text = is_kept ? archives_[segment.archive].form_->texts_[segment.member] : generated;
    std::memcpy(out, text.data() + from, part.size());
  }

  File& file_;
  const std::vector<TorchArchivePlan>& archives_;
  const PayloadReader& read_;
  const TorchWriteOptions& options_;
  // By range. For each archive: header, and text or payload, of each member; then the directory.
  std::vector<Segment> segments_;
  uint32_t parts_ = 0;
  // Of each payload's bytes in each block. Not guarded: only the thread that fills the block sets its parts.
  std::vector<uint32_t> part_crcs_;
  int64_t total_ = 0;

  std::mutex mutex_;
  int64_t done_ = 0;  // guarded by mutex_
};

absl::Status WriteTorchArchives(File& file, const std::vector<TorchArchivePlan>& archives, const PayloadReader& read,
                                const TorchWriteOptions& options) {
  return TorchArchiveWriter(file, archives, read, options).Run();
}

// A file is one archive at offset 0.
absl::Status WriteTorchFile(const std::string& path, const StateDict& contents, const PayloadReader& read,
                            const TorchWriteOptions& options) {
  FSDP_ASSIGN_OR_RETURN(EncodedTorchState encoded, EncodeTorchState(contents));
  std::vector<TorchStorageSource> storages;
  storages.reserve(encoded.storages.size());
  for (const EncodedTorchState::Storage& storage : encoded.storages) {
    if (storage.is_literal) {
      LiteralTensor& literal = encoded.literals[storage.number];
      storages.push_back({.elements = std::move(literal.bytes),
                          .interval = {0, literal.shape.numel()},
                          .element_size = SizeOf(literal.dtype)});
      continue;
    }
    const auto& [key, value] = contents.entries()[storage.number];
    const auto& tensor = std::get<ShardedTensor>(value);
    storages.push_back({.elements = &key, .interval = {0, tensor.shape.numel()}, .element_size = SizeOf(tensor.dtype)});
  }
  std::vector<TorchArchivePlan> archives;
  archives.emplace_back(0, std::move(encoded.pickle), std::move(storages));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateFile(*options.file_system, path, {.overwrite = options.overwrite}));
  FSDP_RETURN_IF_ERROR(WriteTorchArchives(staged->file(), archives, read, options));
  return staged->Commit();
}

}  // namespace fsdp
