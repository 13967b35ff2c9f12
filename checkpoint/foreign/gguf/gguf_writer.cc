// SPDX-License-Identifier: Apache-2.0
//
// A file is written in blocks of 4 MiB, which cut the blocks of quantized types anywhere. Each element must be pulled
// once, so the thread that first comes to a cut makes both halves of the quantized block there, and leaves the other
// half to the thread of the next block of the file, or of the one before:
//
//   blocks of the file       |        0        |        1        |
//   quantized blocks         .. |  |  |  |  |  / |  |  |  |  |  | ..
//                                          cut, by the first thread that comes to it
#include "fsdp/checkpoint/foreign/gguf/gguf_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/staged_path.h"
#include "fsdp/checkpoint/storage/write_blocks.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// Elements that are pulled at a time when they are converted: as many as a source reads well.
constexpr int64_t kChunkNumel = int64_t{1} << 19;
static_assert(kChunkNumel % kMaxGgmlBlockNumel == 0);

class GgufFiller {
 public:
  GgufFiller(const GgufPlan& plan, const PayloadReader& read, const FormatWriteOptions& options)
      : plan_(plan), read_(read), options_(options) {
    for (const GgufPlannedTensor& tensor : plan_.tensors()) total_ += tensor.stored.nbytes;
  }

  // Fills one block of the file. Several threads call it at the same time, each for another block.
  absl::Status Fill(int64_t begin, absl::Span<std::byte> out) {
    std::fill(out.begin(), out.end(), std::byte{0});
    const int64_t end = begin + std::ssize(out);
    if (begin < plan_.header_bytes()) {
      const int64_t nbytes = std::min(end, plan_.header_bytes()) - begin;
      FSDP_RETURN_IF_ERROR(plan_.ReadHeader(begin, out.subspan(0, nbytes)));
    }
    const auto& tensors = plan_.tensors();
    auto tensor = std::partition_point(tensors.begin(), tensors.end(), [&](const GgufPlannedTensor& t) {
      return t.stored.offset + t.stored.nbytes <= begin;
    });
    for (; tensor != tensors.end() && tensor->stored.offset < end; ++tensor) {
      const int64_t from = std::max(begin, tensor->stored.offset);
      const int64_t to = std::min(end, tensor->stored.offset + tensor->stored.nbytes);
      if (from >= to) continue;
      const absl::Status status =
          FillTensor(*tensor, from - tensor->stored.offset, out.subspan(from - begin, to - from));
      if (!status.ok()) return Annotate(status, absl::StrCat("tensor ", Quote(tensor->name)));
      Report(to - from);
    }
    return absl::OkStatus();
  }

 private:
  // Writes the bytes from `offset` of a tensor: perhaps the end of a block, whole blocks, the beginning of a block.
  absl::Status FillTensor(const GgufPlannedTensor& tensor, int64_t offset, absl::Span<std::byte> out) {
    const int64_t size = tensor.stored.type->block_bytes;
    if (const int64_t missing = offset % size; missing != 0) {
      const int64_t nbytes = std::min(size - missing, std::ssize(out));
      FSDP_RETURN_IF_ERROR(FillCut(tensor, offset / size, missing, out.subspan(0, nbytes)));
      offset += nbytes;
      out.remove_prefix(nbytes);
    }
    const int64_t whole = std::ssize(out) / size;
    FSDP_RETURN_IF_ERROR(FillBlocks(tensor, offset / size, whole, out.data()));
    out.remove_prefix(whole * size);
    return out.empty() ? absl::OkStatus() : FillCut(tensor, offset / size + whole, 0, out);
  }

  // Writes a part of block `block`, from its byte `begin` on; the other part is in the next block of the file, or in
  // the one before.
  absl::Status FillCut(const GgufPlannedTensor& tensor, int64_t block, int64_t begin, absl::Span<std::byte> out) {
    const int64_t at = tensor.stored.offset + block * tensor.stored.type->block_bytes;
    // Blocks are cut once in 4 MiB, so that reading under the lock costs nothing.
    const std::lock_guard<std::mutex> lock(cut_mutex_);
    auto cut = cuts_.find(at);
    const bool is_second = cut != cuts_.end();
    if (!is_second) {
      std::vector<std::byte> bytes(tensor.stored.type->block_bytes);
      FSDP_RETURN_IF_ERROR(FillBlocks(tensor, block, 1, bytes.data()));
      cut = cuts_.emplace(at, std::move(bytes)).first;
    }
    std::memcpy(out.data(), cut->second.data() + begin, out.size());
    if (is_second) cuts_.erase(cut);
    return absl::OkStatus();
  }

  absl::Status FillBlocks(const GgufPlannedTensor& tensor, int64_t first, int64_t count, std::byte* out) const {
    const GgmlType& type = *tensor.stored.type;
    const StateKey key = StateKey::Model(tensor.name);
    if (tensor.is_carried) return read_(key, {first * type.block_bytes, (first + count) * type.block_bytes}, out);
    const Interval all = {first * type.block_numel, (first + count) * type.block_numel};
    if (all.empty()) return absl::OkStatus();
    if (!type.is_quantized() && tensor.dtype == *type.dtype) return read_(key, all, out);
    std::vector<std::byte> pulled(std::min(all.size(), kChunkNumel) * SizeOf(tensor.dtype));
    std::vector<float> floats;
    for (int64_t begin = all.begin; begin < all.end; begin += kChunkNumel) {
      const Interval chunk = {begin, std::min(all.end, begin + kChunkNumel)};
      FSDP_RETURN_IF_ERROR(read_(key, chunk, pulled.data()));
      std::byte* const to = out + (begin - all.begin) / type.block_numel * type.block_bytes;
      if (!type.is_quantized()) {
        FSDP_RETURN_IF_ERROR(Convert(tensor.dtype, pulled.data(), *type.dtype, to, chunk.size()));
        continue;
      }
      floats.resize(chunk.size());
      FSDP_RETURN_IF_ERROR(Convert(tensor.dtype, pulled.data(), DType::kFloat32, floats.data(), chunk.size()));
      const int64_t done = type.quantize(floats.data(), chunk.size() / type.block_numel, to);
      if (done != chunk.size()) {
        return absl::InvalidArgumentError(absl::StrCat("an element from ", chunk.begin + done, " to ",
                                                       chunk.begin + done + type.block_numel,
                                                       " is not finite, or too large for ", std::string(type.name)));
      }
    }
    return absl::OkStatus();
  }

  void Report(int64_t nbytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ += nbytes;
    if (options_.progress) options_.progress(done_, total_);
  }

  const GgufPlan& plan_;
  const PayloadReader& read_;
  const FormatWriteOptions& options_;
  int64_t total_ = 0;

  std::mutex cut_mutex_;
  std::map<int64_t, std::vector<std::byte>> cuts_;  // by place in the file; guarded by cut_mutex_

  std::mutex mutex_;
  int64_t done_ = 0;  // guarded by mutex_
};

}  // namespace

absl::Status WriteGguf(const std::string& path, const GgufPlan& plan, const PayloadReader& read,
                       const FormatWriteOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateFile(*options.file_system, path, {.overwrite = options.overwrite}));
  GgufFiller filler(plan, read, options);
  const BlockWriteShape shape = ShapeOfBlockWrites(options.buffer_bytes, options.io_threads);
  const int64_t threads = std::clamp<int64_t>(BlockCount(plan.nbytes()), 1, shape.threads);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(static_cast<int>(threads), "gguf"));
  const BlockFiller fill = [&](int64_t begin, absl::Span<std::byte> out) { return filler.Fill(begin, out); };
  FSDP_RETURN_IF_ERROR(WriteBlocks(staged->file(), plan.nbytes(), fill, *pool, shape.queue_depth));
  FSDP_RETURN_IF_ERROR(staged->file().Sync());
  return staged->Commit();
}

}  // namespace fsdp
