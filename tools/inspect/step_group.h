// SPDX-License-Identifier: Apache-2.0
//
// StepGroup: reads several open checkpoints of one run together, each value once, and compares each tensor with the
// same tensor of the checkpoint before. Memory is two pieces for each thread, besides the sources.
#ifndef FSDP_TOOLS_INSPECT_STEP_GROUP_H_
#define FSDP_TOOLS_INSPECT_STEP_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tools/inspect/checkpoint_layers.h"
#include "fsdp/tools/inspect/run_history.h"

namespace fsdp {

class StepGroup {
 public:
  static constexpr int64_t kPieceBytes = int64_t{4} << 20;

  // `index` maps the parameters of all sources to `layers` rows; it must outlive this.
  StepGroup(const LayerIndex& index, size_t layers) : index_(index), layers_(layers) {}

  // The next checkpoint, oldest first. One that is not counted is only there to compare the next one with it.
  void Add(std::unique_ptr<TensorSource> source, bool is_counted);

  // Reads all values, on the threads of `pool`; `progress` gets the bytes of each piece, never from two threads at a
  // time. A source that cannot be read does not stop the others; kResourceExhausted stops all. Call it once. Blocks.
  absl::Status Read(ThreadPool& pool, const std::function<void(int64_t)>& progress);

  // Of source i, in the order of Add: the error of the first of its tensors that could not be read, and its layers.
  const absl::Status& status(size_t i) const { return sources_[i].status; }
  const std::vector<LayerAtStep>& layers(size_t i) const { return sources_[i].layers; }

 private:
  struct Source {
    std::unique_ptr<TensorSource> source;
    bool is_counted = true;
    absl::Status status;
    size_t failed_piece = 0;  // of `status`
    std::vector<LayerAtStep> layers;
  };

  // Tensors of one key and one shape, in some of the sources.
  struct SameTensors {
    StateKey key;
    Shape shape;
    std::vector<size_t> sources;  // ascending
  };

  struct Piece {
    size_t tensors = 0;  // an index
    Interval interval;
  };

  std::vector<SameTensors> FindTensors() const;
  std::vector<Piece> CutPieces(const std::vector<SameTensors>& all) const;
  absl::Status ReadPiece(const SameTensors& tensors, size_t number, const Interval& interval,
                         const std::function<void(int64_t)>& progress);
  DType DTypeIn(size_t source, const StateKey& key) const;
  void Deliver(size_t source, const StateKey& key, const LayerAtStep& sums, int64_t nbytes,
               const std::function<void(int64_t)>& progress);
  void Fail(size_t source, size_t piece, const absl::Status& status);

  const LayerIndex& index_;
  const size_t layers_;
  std::vector<Source> sources_;
  std::mutex mutex_;  // guards the results in sources_ while pieces are read
};

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_STEP_GROUP_H_
