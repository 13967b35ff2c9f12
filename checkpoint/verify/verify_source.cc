// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/verify/verify_source.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/source/expansion.h"

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
    tensors_.reserve(source_.contents().entries().size());
    pieces_.reserve(source_.contents().entries().size());
    for (const auto& [key, value] : source_.contents().entries()) {
      if (const ShardedTensor* tensor = std::get_if<ShardedTensor>(&value)) Add(key, *tensor);
    }
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(options_.io_threads, "verify"));
    FSDP_RETURN_IF_ERROR(pool->ParallelFor(static_cast<int64_t>(pieces_.size()), [&](int64_t i) {
      Verify(pieces_[i]);
      return absl::OkStatus();
    }));
    VerifyReport report;
    const absl::Status rest = source_.VerifyRest();
    if (!rest.ok()) report.problems.emplace_back(rest.message());
    report.tensors = static_cast<int64_t>(tensors_.size());
    report.bytes = bytes_done_;
    for (const Tensor& tensor : tensors_) Conclude(tensor, report);
    return report;
  }

 private:
  struct Tensor {
    const StateKey* key = nullptr;  // in the source's contents
    DType dtype = DType::kFloat32;
    ReadExtent extent;
    absl::Status read;
    NonFinite nonfinite;
  };

  void Add(const StateKey& key, const ShardedTensor& tensor) {
    const ReadExtent extent = bound_.Of(key, tensor);
    for (const Interval& interval : source_.Pieces(key, {0, extent.numel})) {
      pieces_.push_back({tensors_.size(), interval});
      bytes_total_ += interval.size() * SizeOf(tensor.dtype);
    }
    tensors_.push_back({&key, tensor.dtype, extent, absl::OkStatus(), {}});
  }

  // The bytes of an equal view of the same storage are reported once if they are damaged, and under both names if they
  // are not finite or not read.
  void Conclude(const Tensor& tensor, VerifyReport& report) const {
    if (!tensor.read.ok()) report.problems.emplace_back(tensor.read.message());
    const Tensor& values = tensor.extent.same_as >= 0 ? tensors_[tensor.extent.same_as] : tensor;
    if (values.nonfinite.any()) report.nonfinite.push_back({tensor.key->ToString(), values.nonfinite});
    if (values.extent.left_out == 0) return;
    report.not_wholly_read.push_back({tensor.key->ToString(), values.extent.numel, values.extent.left_out});
  }

  // Keeps only the first error of a tensor (Status::Update): a damaged file would otherwise be reported once per piece.
  void Verify(const Piece& piece) {
    Tensor& tensor = tensors_[piece.tensor];
    const int64_t nbytes = piece.interval.size() * SizeOf(tensor.dtype);
    const std::unique_ptr<std::byte[]> elements(new std::byte[nbytes]);
    const absl::Status read = tensor.extent.Read(source_, *tensor.key, piece.interval, elements.get());
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
  std::vector<Piece> pieces_;
  int64_t bytes_total_ = 0;

  std::mutex mutex_;
  std::vector<Tensor> tensors_;  // read and nonfinite of each are guarded by mutex_
  int64_t bytes_done_ = 0;       // guarded by mutex_
};

}  // namespace

absl::StatusOr<VerifyReport> VerifySource(const TensorSource& source, const VerifyOptions& options) {
  return SourceVerification(source, options).Run();
}

}  // namespace fsdp
