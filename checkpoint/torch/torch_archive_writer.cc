// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/torch/torch_archive_writer.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "checkpoint/torch/crc32.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxPieceBytes = int64_t{4} << 20;
constexpr int64_t kMinPieceBytes = int64_t{64} << 10;

// Entries that say what the archive is, before the storages. torch looks for the byte order and the version.
constexpr std::pair<const char*, const char*> kTexts[] = {{"archive/byteorder", "little"}, {"archive/version", "3\n"}};

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

int64_t SizeOf(const TorchStorageSource& storage) { return storage.interval.size() * storage.element_size; }

std::vector<ZipLayout::Member> Members(const std::vector<std::string>& texts,
                                       const std::vector<TorchStorageSource>& storages) {
  std::vector<ZipLayout::Member> members = {{"archive/data.pkl", static_cast<int64_t>(texts[0].size())}};
  for (size_t i = 1; i < texts.size(); ++i)
    members.push_back({kTexts[i - 1].first, static_cast<int64_t>(texts[i].size())});
  for (size_t i = 0; i < storages.size(); ++i)
    members.push_back({absl::StrCat("archive/data/", i), SizeOf(storages[i])});
  return members;
}

std::vector<std::string> Texts(std::string pickle) {
  std::vector<std::string> texts = {std::move(pickle)};
  for (const auto& [name, text] : kTexts) texts.emplace_back(text);
  return texts;
}

}  // namespace

TorchArchivePlan::TorchArchivePlan(int64_t offset, std::string pickle, std::vector<TorchStorageSource> storages)
    : offset_(offset),
      texts_(Texts(std::move(pickle))),
      storages_(std::move(storages)),
      layout_(Members(texts_, storages_)) {}

class TorchArchiveWriter {
 public:
  TorchArchiveWriter(File& file, const std::vector<TorchArchivePlan>& archives, const PayloadReader& read,
                     const TorchWriteOptions& options)
      : file_(file), archives_(archives), read_(read), options_(options), threads_(std::max(1, options.io_threads)) {}

  absl::Status Run() {
    PlanPieces();
    RETURN_IF_ERROR(file_.Reserve(archives_.empty() ? 0 : archives_.back().end()));  // a full disk is noticed here
    const auto count = static_cast<int64_t>(pieces_.size());
    ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                     ThreadPool::Create(static_cast<int>(std::clamp<int64_t>(count, 1, threads_)), "torch-writer"));
    RETURN_IF_ERROR(pool->ParallelFor(count, [this](int64_t i) { return WritePiece(pieces_[i]); }));
    size_t piece = 0;
    for (const TorchArchivePlan& archive : archives_) RETURN_IF_ERROR(WriteHeaders(archive, piece));
    return file_.Sync();
  }

 private:
  struct Piece {
    const TorchArchivePlan* archive = nullptr;
    size_t storage = 0;
    Interval elements;  // of the tensor
    uint32_t crc = 0;
  };

  void PlanPieces() {
    const int64_t piece_bytes = std::clamp(options_.buffer_bytes / threads_, kMinPieceBytes, kMaxPieceBytes);
    for (const TorchArchivePlan& archive : archives_) {
      for (size_t i = 0; i < archive.storages_.size(); ++i) {
        const TorchStorageSource& storage = archive.storages_[i];
        const int64_t step = piece_bytes / storage.element_size;
        for (int64_t begin = storage.interval.begin; begin < storage.interval.end; begin += step) {
          pieces_.push_back({&archive, i, {begin, std::min(begin + step, storage.interval.end)}});
        }
        total_ += SizeOf(storage);
      }
    }
    buffer_bytes_ = piece_bytes;
  }

  absl::Status WritePiece(Piece& piece) {
    const TorchArchivePlan& archive = *piece.archive;
    const TorchStorageSource& storage = archive.storages_[piece.storage];
    const int64_t nbytes = piece.elements.size() * storage.element_size;
    std::unique_ptr<std::byte[]> buffer = TakeBuffer();
    RETURN_IF_ERROR(read_(storage.key, piece.elements, buffer.get()));
    const auto bytes = absl::MakeConstSpan(buffer.get(), nbytes);
    piece.crc = Crc32(bytes);
    const int64_t at = archive.offset_ + archive.layout_.payload_offset(archive.texts_.size() + piece.storage) +
                       (piece.elements.begin - storage.interval.begin) * storage.element_size;
    RETURN_IF_ERROR(file_.Write(at, bytes));
    const std::lock_guard<std::mutex> lock(mutex_);
    free_buffers_.push_back(std::move(buffer));
    done_ += nbytes;
    if (options_.progress) options_.progress(done_, total_);
    return absl::OkStatus();
  }

  std::unique_ptr<std::byte[]> TakeBuffer() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_buffers_.empty()) return std::unique_ptr<std::byte[]>(new std::byte[buffer_bytes_]);
    std::unique_ptr<std::byte[]> buffer = std::move(free_buffers_.back());
    free_buffers_.pop_back();
    return buffer;
  }

  // Everything but the storages. `piece` is the first of the archive's pieces, and is moved behind them.
  absl::Status WriteHeaders(const TorchArchivePlan& archive, size_t& piece) {
    std::vector<uint32_t> crcs;
    for (const std::string& text : archive.texts_) crcs.push_back(Crc32(Bytes(text)));
    for (size_t i = 0; i < archive.storages_.size(); ++i) {
      uint32_t crc = 0;
      for (; piece < pieces_.size() && pieces_[piece].archive == &archive && pieces_[piece].storage == i; ++piece) {
        crc = CombineCrc32(crc, pieces_[piece].crc, pieces_[piece].elements.size() * archive.storages_[i].element_size);
      }
      crcs.push_back(crc);
    }
    for (size_t i = 0; i < crcs.size(); ++i) {
      std::string bytes = archive.layout_.LocalHeader(i, crcs[i]);
      if (i < archive.texts_.size()) bytes += archive.texts_[i];
      RETURN_IF_ERROR(file_.Write(archive.offset_ + archive.layout_.header_offset(i), Bytes(bytes)));
    }
    return file_.Write(archive.offset_ + archive.layout_.directory_offset(), Bytes(archive.layout_.Directory(crcs)));
  }

  File& file_;
  const std::vector<TorchArchivePlan>& archives_;
  const PayloadReader& read_;
  const TorchWriteOptions& options_;
  const int threads_;
  std::vector<Piece> pieces_;  // by archive, storage, elements
  int64_t buffer_bytes_ = 0;
  int64_t total_ = 0;

  std::mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> free_buffers_;  // guarded by mutex_, as done_
  int64_t done_ = 0;
};

absl::Status WriteTorchArchives(File& file, const std::vector<TorchArchivePlan>& archives, const PayloadReader& read,
                                const TorchWriteOptions& options) {
  return TorchArchiveWriter(file, archives, read, options).Run();
}

}  // namespace fsdp
