// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/formats/verify_source.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/source/expansion.h"
#include "fsdp/checkpoint/source/tensor_views.h"

namespace fsdp {
namespace {

// Elements of one tensor that one task reads.
struct Piece {
  size_t tensor = 0;
  Interval interval;
};

class SourceVerification {
 public:
  SourceVerification(const TensorSource& source, const VerifyOptions& options) : source_(source), options_(options) {}

  absl::StatusOr<VerifyReport> Run() {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(options_.io_threads, "verify"));
    CountBytes();
    for (const auto& [key, value] : source_.contents().entries()) {
      const ShardedTensor* const tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr) continue;
      Add(key, *tensor);
      if (std::max(pieces_.size(), tensors_.size()) >= kBatch) FSDP_RETURN_IF_ERROR(VerifyBatch(*pool));
    }
    FSDP_RETURN_IF_ERROR(VerifyBatch(*pool));
    const absl::Status rest = VerifyRest(source_);
    if (!rest.ok()) {
      report_.AddProblem(rest);
      // First in the report: it concerns the file and not a single tensor.
      std::rotate(report_.problems.begin(), report_.problems.end() - 1, report_.problems.end());
    }
    report_.bytes = bytes_done_;
    return std::move(report_);
  }

 private:
  // Pieces that are read before their tensors are concluded: enough to keep all threads busy, and few compared with a
  // large model's tensors, whose state is therefore never all in memory at the same time.
  static constexpr size_t kBatch = 1024;

  struct Tensor {
    const StateKey* key = nullptr;  // in the source's contents
    DType dtype = DType::kFloat32;
    ReadExtent extent;
    absl::Status read;
    NonFinite nonfinite;
  };

  // Results of a tensor that a later equal view of the same storage needs.
  struct Values {
    NonFinite nonfinite;
    ReadExtent extent;
  };

  void CountBytes() {
    ReadBound bound(source_);
    for (const auto& [key, value] : source_.contents().entries()) {
      const ShardedTensor* const tensor = std::get_if<ShardedTensor>(&value);
      if (tensor != nullptr) bytes_total_ += bound.Of(key, *tensor).numel * SizeOf(tensor->dtype);
    }
  }

  void Add(const StateKey& key, const ShardedTensor& tensor) {
    // CountBytes used a ReadBound of its own: the bound consumes a budget in the order of the tensors, and both passes
    // must see the same order.
    const ReadExtent extent = bound_.Of(key, tensor);
    for (const Interval& interval : source_.Pieces(key, {0, extent.numel})) {
      pieces_.push_back({tensors_.size(), interval});
    }
    tensors_.push_back({&key, tensor.dtype, extent, absl::OkStatus(), {}});
  }

  absl::Status VerifyBatch(ThreadPool& pool) {
    FSDP_RETURN_IF_ERROR(pool.ParallelFor(static_cast<int64_t>(pieces_.size()), [&](int64_t i) {
      Verify(pieces_[i]);
      return absl::OkStatus();
    }));
    for (const Tensor& tensor : tensors_) Conclude(tensor);
    tensors_.clear();
    pieces_.clear();
    return absl::OkStatus();
  }

  // Concludes a tensor. Damage in an equal view of the same storage is reported once; values that are not finite or not
  // read are reported under both names.
  void Conclude(const Tensor& tensor) {
    const int64_t number = report_.tensors++;
    if (!tensor.read.ok()) report_.AddProblem(tensor.read);
    Values values = {tensor.nonfinite, tensor.extent};
    if (tensor.extent.same_as >= 0) {
      const auto same = notable_.find(tensor.extent.same_as);
      if (same == notable_.end()) return;
      values = same->second;
    } else if (values.nonfinite.any() || values.extent.left_out != 0) {
      notable_.try_emplace(number, values);
    }
    if (values.nonfinite.any()) report_.nonfinite.push_back({tensor.key->ToString(), values.nonfinite});
    if (values.extent.left_out == 0) return;
    report_.partly_read.push_back({tensor.key->ToString(), values.extent.numel, values.extent.left_out});
  }

  // Keeps only the first error of a tensor (Status::Update): otherwise a damaged file would be reported once per piece.
  void Verify(const Piece& piece) {
    Tensor& tensor = tensors_[piece.tensor];
    const int64_t nbytes = piece.interval.size() * SizeOf(tensor.dtype);
    const std::unique_ptr<std::byte[]> elements(new std::byte[nbytes]);
    const absl::Status read = tensor.extent.Read(source_, *tensor.key, piece.interval, elements.get());
    // Counted outside the lock, which only guards the sums.
    const bool is_counted = read.ok() && options_.count_nonfinite;
    const NonFinite count =
        is_counted ? CountNonFinite(tensor.dtype, elements.get(), piece.interval.size()) : NonFinite();
    const std::lock_guard<std::mutex> lock(mutex_);
    tensor.read.Update(read);
    tensor.nonfinite.Add(count);
    if (read.ok()) bytes_done_ += nbytes;
    if (options_.progress) options_.progress(bytes_done_, bytes_total_);
  }

  const TensorSource& source_;
  const VerifyOptions& options_;
  ReadBound bound_{source_};
  std::vector<Piece> pieces_;                     // of the batch
  absl::flat_hash_map<int64_t, Values> notable_;  // by number: tensors that are not finite or not wholly read
  VerifyReport report_;
  int64_t bytes_total_ = 0;

  std::mutex mutex_;
  std::vector<Tensor> tensors_;  // of the batch; read and nonfinite of each are guarded by mutex_ while it is read
  int64_t bytes_done_ = 0;       // guarded by mutex_
};

}  // namespace

absl::StatusOr<VerifyReport> VerifySource(const TensorSource& source, const VerifyOptions& options) {
  return SourceVerification(source, options).Run();
}

}  // namespace fsdp
