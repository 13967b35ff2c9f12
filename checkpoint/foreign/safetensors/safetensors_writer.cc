// SPDX-License-Identifier: Apache-2.0
//
// The size of a tensor is known before its elements are, so the header is complete before any payload is read: a file
// is the text of the header and then payload at known offsets. Several threads fill blocks of the file, in any order
// (write_blocks.h); each block pulls its elements from the reader. Memory is the blocks in flight, whatever the size of
// the model or of its largest tensor.
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/staged_path.h"
#include "fsdp/checkpoint/storage/write_blocks.h"

namespace fsdp {
namespace {

// Creates one file block by block: the header, then tensor after tensor. The payload begins at a multiple of 8 and
// tensors at multiples of their element size, so no element is cut.
class SafetensorsFiller {
 public:
  SafetensorsFiller(std::string head, const std::vector<SafetensorsEntry>& entries, const PayloadReader& read,
                    const std::function<void(int64_t, int64_t)>& progress)
      : head_(std::move(head)), entries_(entries), read_(read), progress_(progress) {}

  int64_t nbytes() const { return head_bytes() + payload_bytes(); }

  // Fills one block of the file, from byte `begin` on. Several threads call it at the same time.
  absl::Status Fill(int64_t begin, absl::Span<std::byte> out) {
    const Interval block = {begin, begin + static_cast<int64_t>(out.size())};
    const Interval head = Intersect(block, {0, head_bytes()});
    if (!head.empty()) std::memcpy(out.data(), head_.data() + head.begin, head.size());
    const Interval payload = {std::max(block.begin, head_bytes()) - head_bytes(), block.end - head_bytes()};
    if (payload.end <= 0) return absl::OkStatus();
    FSDP_RETURN_IF_ERROR(FillPayload(payload, out.data() + head.size()));
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ += payload.size();
    if (progress_) progress_(done_, payload_bytes());
    return absl::OkStatus();
  }

 private:
  int64_t head_bytes() const { return static_cast<int64_t>(head_.size()); }
  int64_t payload_bytes() const { return entries_.empty() ? 0 : entries_.back().end; }

  // Fills bytes `piece` of the payload: parts of one or more tensors. Needs no lock, because entries_ is constant.
  absl::Status FillPayload(const Interval& piece, std::byte* out) const {
    auto entry = std::partition_point(entries_.begin(), entries_.end(),
                                      [&](const SafetensorsEntry& e) { return e.end <= piece.begin; });
    StateKey key = StateKey::Model("");  // one for all, whose memory serves each name
    for (; entry != entries_.end() && entry->begin < piece.end; ++entry) {
      const Interval part = Intersect(piece, {entry->begin, entry->end});
      if (part.empty()) continue;
      const int64_t size = SizeOf(entry->dtype);
      const Interval elements = {(part.begin - entry->begin) / size, (part.end - entry->begin) / size};
      key.fqn = entry->name;
      FSDP_RETURN_IF_ERROR(read_(key, elements, out + (part.begin - piece.begin)));
    }
    return absl::OkStatus();
  }

  const std::string head_;
  const std::vector<SafetensorsEntry>& entries_;  // with offsets, in their order
  const PayloadReader& read_;
  const std::function<void(int64_t, int64_t)>& progress_;

  std::mutex mutex_;
  int64_t done_ = 0;  // guarded by mutex_
};

}  // namespace

std::vector<SafetensorsEntry> ModelEntries(const StateDict& contents) {
  std::vector<SafetensorsEntry> entries;
  entries.reserve(contents.entries().size());
  for (const auto& [key, value] : contents.entries()) {
    const ShardedTensor* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr || key.section != StateKey::Section::kModel || contents.aliases.count(key.fqn) != 0) continue;
    entries.push_back({key.fqn, tensor->dtype, tensor->shape});
  }
  return entries;
}

// The permitted memory determines the number of threads: each has a few blocks in flight.
absl::Status FillSafetensorsFile(File& file, std::vector<SafetensorsEntry> entries, const PayloadReader& read,
                                 const SafetensorsOptions& options) {
  PlaceSafetensorsEntries(entries);
  const SafetensorsHeader header = {options.metadata, std::move(entries)};
  FSDP_ASSIGN_OR_RETURN(std::string head, EncodeSafetensorsHeader(header));
  SafetensorsFiller filler(std::move(head), header.entries, read, options.progress);
  const BlockWriteShape shape = ShapeOfBlockWrites(options.buffer_bytes, options.io_threads);
  const int64_t threads = std::clamp<int64_t>(BlockCount(filler.nbytes()), 1, shape.threads);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                        ThreadPool::Create(static_cast<int>(threads), "safetensors"));
  const BlockFiller fill = [&](int64_t begin, absl::Span<std::byte> out) { return filler.Fill(begin, out); };
  FSDP_RETURN_IF_ERROR(WriteBlocks(file, filler.nbytes(), fill, *pool, shape.queue_depth));
  return file.Sync();
}

// Any failure before the commit removes the staged file (staged_path.h).
absl::Status WriteSafetensors(const std::string& path, const StateDict& contents, const PayloadReader& read,
                              const SafetensorsOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateFile(*options.file_system, path, {.overwrite = options.overwrite}));
  FSDP_RETURN_IF_ERROR(FillSafetensorsFile(staged->file(), ModelEntries(contents), read, options));
  return staged->Commit();
}

}  // namespace fsdp
