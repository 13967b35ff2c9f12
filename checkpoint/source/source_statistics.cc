// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/source_statistics.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"

namespace fsdp {
namespace {

struct Piece {
  const StateKey* key;
  DType dtype;
  Interval interval;
};

}  // namespace

absl::StatusOr<std::map<StateKey, ValueStatistics>> ReadStatistics(const TensorSource& source,
                                                                   const StatisticsOptions& options) {
  std::map<StateKey, ValueStatistics> statistics;
  std::vector<Piece> pieces;
  int64_t bytes_total = 0;
  for (const auto& [key, value] : source.contents().entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    statistics[key] = {};
    for (const Interval& interval : source.Pieces(key, {0, tensor->shape.numel()})) {
      pieces.push_back({&key, tensor->dtype, interval});
    }
    bytes_total += tensor->shape.numel() * SizeOf(tensor->dtype);
  }
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(options.io_threads, "statistics"));
  std::mutex mutex;
  int64_t bytes_done = 0;
  FSDP_RETURN_IF_ERROR(pool->ParallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t i) -> absl::Status {
    const Piece& piece = pieces[i];
    const int64_t nbytes = piece.interval.size() * SizeOf(piece.dtype);
    const std::unique_ptr<std::byte[]> elements(new std::byte[nbytes]);
    FSDP_RETURN_IF_ERROR(source.Read(*piece.key, piece.interval, elements.get()));
    ValueStatistics part;
    FSDP_RETURN_IF_ERROR(AddElements(piece.dtype, elements.get(), piece.interval.size(), part));
    const std::lock_guard<std::mutex> lock(mutex);
    statistics.at(*piece.key).Add(part);
    bytes_done += nbytes;
    if (options.progress) options.progress(bytes_done, bytes_total);
    return absl::OkStatus();
  }));
  return statistics;
}

}  // namespace fsdp
