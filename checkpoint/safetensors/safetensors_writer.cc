// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors/safetensors_writer.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "checkpoint/storage/staged_path.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxPieceBytes = int64_t{8} << 20;
constexpr int64_t kMinPieceBytes = int64_t{64} << 10;

absl::Span<const std::byte> Bytes(const char* data, int64_t nbytes) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data), static_cast<size_t>(nbytes));
}

// Writes the payload of one file as pieces of equal length, each filled and written by whichever thread is free. Pieces
// begin at multiples of 8 and tensors at multiples of their element size, so no element is cut.
class PayloadWriter {
 public:
  PayloadWriter(File& file, int64_t payload_offset, const std::vector<SafetensorsEntry>& entries,
                const PayloadReader& read)
      : file_(file), payload_offset_(payload_offset), entries_(entries), read_(read) {}

  absl::Status Run(const SafetensorsOptions& options) {
    progress_ = options.progress;
    const int threads = std::max(1, options.io_threads);
    piece_bytes_ = std::clamp(options.buffer_bytes / threads, kMinPieceBytes, kMaxPieceBytes) / 8 * 8;
    const int64_t pieces = (payload_bytes() + piece_bytes_ - 1) / piece_bytes_;
    ASSIGN_OR_RETURN(std::unique_ptr<ThreadPool> pool,
                     ThreadPool::Create(static_cast<int>(std::clamp<int64_t>(pieces, 1, threads)), "safetensors"));
    return pool->ParallelFor(pieces, [this](int64_t i) { return WritePiece(i); });
  }

 private:
  int64_t payload_bytes() const { return entries_.empty() ? 0 : entries_.back().end; }

  absl::Status WritePiece(int64_t index) {
    const int64_t begin = index * piece_bytes_;
    const Interval piece = {begin, std::min(begin + piece_bytes_, payload_bytes())};
    std::unique_ptr<char[]> buffer = TakeBuffer();
    RETURN_IF_ERROR(Fill(piece, buffer.get()));
    RETURN_IF_ERROR(file_.Write(payload_offset_ + piece.begin, Bytes(buffer.get(), piece.size())));
    std::lock_guard<std::mutex> lock(mutex_);
    free_buffers_.push_back(std::move(buffer));
    done_ += piece.size();
    if (progress_) progress_(done_, payload_bytes());
    return absl::OkStatus();
  }

  std::unique_ptr<char[]> TakeBuffer() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_buffers_.empty()) return std::unique_ptr<char[]>(new char[piece_bytes_]);
    std::unique_ptr<char[]> buffer = std::move(free_buffers_.back());
    free_buffers_.pop_back();
    return buffer;
  }

  // Bytes `piece` of the payload: parts of one or more tensors.
  absl::Status Fill(const Interval& piece, char* out) const {
    auto entry = std::partition_point(entries_.begin(), entries_.end(),
                                      [&](const SafetensorsEntry& e) { return e.end <= piece.begin; });
    for (; entry != entries_.end() && entry->begin < piece.end; ++entry) {
      const Interval part = Intersect(piece, {entry->begin, entry->end});
      if (part.empty()) continue;
      const int64_t size = SizeOf(entry->dtype);
      const Interval elements = {(part.begin - entry->begin) / size, (part.end - entry->begin) / size};
      RETURN_IF_ERROR(read_(StateKey::Model(entry->name), elements, out + (part.begin - piece.begin)));
    }
    return absl::OkStatus();
  }

  File& file_;
  const int64_t payload_offset_;
  const std::vector<SafetensorsEntry>& entries_;  // placed
  const PayloadReader& read_;
  int64_t piece_bytes_ = 0;

  std::mutex mutex_;
  std::vector<std::unique_ptr<char[]>> free_buffers_;  // guarded by mutex_, as all below
  int64_t done_ = 0;
  std::function<void(int64_t, int64_t)> progress_;
};

}  // namespace

std::vector<SafetensorsEntry> ModelEntries(const StateDict& contents) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [key, value] : contents.entries()) {
    const ShardedTensor* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr || key.section != StateKey::Section::kModel || contents.aliases.count(key.fqn) != 0) continue;
    entries.push_back({key.fqn, tensor->dtype, tensor->shape});
  }
  return entries;
}

absl::Status FillSafetensorsFile(File& file, std::vector<SafetensorsEntry> entries, const PayloadReader& read,
                                 const SafetensorsOptions& options) {
  PlaceSafetensorsEntries(entries);
  const SafetensorsHeader header = {options.metadata, std::move(entries)};
  ASSIGN_OR_RETURN(const std::string head, EncodeSafetensorsHeader(header));
  const auto head_bytes = static_cast<int64_t>(head.size());
  const int64_t payload_bytes = header.entries.empty() ? 0 : header.entries.back().end;
  RETURN_IF_ERROR(file.Reserve(head_bytes + payload_bytes));  // a full disk is noticed here
  RETURN_IF_ERROR(file.Write(0, Bytes(head.data(), head_bytes)));
  RETURN_IF_ERROR(PayloadWriter(file, head_bytes, header.entries, read).Run(options));
  return file.Sync();
}

absl::Status WriteSafetensors(const std::string& path, const StateDict& contents, const PayloadReader& read,
                              const SafetensorsOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                   StagedPath::CreateFile(*options.file_system, path, {.overwrite = options.overwrite}));
  RETURN_IF_ERROR(FillSafetensorsFile(staged->file(), ModelEntries(contents), read, options));
  return staged->Commit();
}

}  // namespace fsdp
