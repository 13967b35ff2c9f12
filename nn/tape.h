// SPDX-License-Identifier: Apache-2.0
//
// Tape: one forward pass and its backward. It holds the stream, device and kernels for the work, and keeps what
// backward will need. Saved tensors are a stack: a module's Backward restores in reverse what its Forward saved, so
// several forwards may be open at the same time, each on its own tape. Not thread-safe. Saved tensors hold their memory
// until they are restored or the tape is destroyed.
#ifndef FSDP_NN_TAPE_H_
#define FSDP_NN_TAPE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/nn/ops/device_scaled_loss.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// The inputs or outputs of a module of several, in the order of its forward's arguments. An undefined tensor is an
// argument that is left out (a mask), or a gradient that does not exist.
using TensorList = std::vector<Tensor>;

// The source of the random numbers of one pass's layers (dropout). A draw is a pure function of this state, of its
// number within the pass and of the position of an element in the global batch, so the same samples get the same
// numbers on any number of ranks and in any division into micro-batches.
struct RandomState {
  uint64_t seed = 0;         // of the run
  uint64_t step = 0;         // optimizer steps before this one; below 2^40, with at most 2^24 draws
  int64_t first_sample = 0;  // place in the step's global batch of the first sample of this pass
  int64_t samples = 1;       // of this pass: the inputs of a layer that draws hold as many, one after another
};

// One layer's draw in a pass: the numbers of element i of sample s are at s * (elements of a sample) + i of the
// sequence, under the state's seed.
struct RandomDraw {
  RandomState state;
  uint32_t number = 0;  // draws of the pass before this one

  uint64_t sequence() const { return state.step << 24 | number; }
};

// The factor of the gradient of a loss: a number, or one in the device's memory.
using LossScale = std::variant<float, DeviceScale>;

class Tape {
 public:
  // `stream` and `ops` must outlive the tape. With `keep_for_backward` off (evaluation) nothing is saved.
  Tape(Stream& stream, const LayerOps& ops, bool keep_for_backward = true);

  Stream& stream() const { return stream_; }
  Device& device() const { return stream_.device(); }
  // The kernels of the stream's device.
  const LayerOps& ops() const { return ops_; }
  bool keep_for_backward() const { return keep_for_backward_; }
  // True in a pass that backward follows, even if this tape keeps nothing because activation checkpointing will run the
  // forward again. For layers that differ in training (dropout).
  bool training() const { return training_; }

  // New memory for work on stream(), contents unspecified: in the stream's order (tensor/ordered_memory.h) if the
  // device supports that. Otherwise the caller may run ahead of the stream, whose finished work gives its memory back,
  // by 64 MiB of such memory; beyond that, this call waits for the stream, and returns the stream's error if it has
  // one. kResourceExhausted if the device has no room.
  absl::StatusOr<Tensor> Empty(DType dtype, Shape shape);

  // As Empty, with the distance between rows that suits the device's products (LayerOps::RowStride): contiguous on
  // hosts, perhaps padded on GPUs. Only for outputs whose every reader takes padded rows: LayerOps documents which
  // kernels do.
  absl::StatusOr<Tensor> EmptyRows(DType dtype, Shape shape);

  // New memory for elements of `dtype` in the same layout as `t`, padding included.
  absl::StatusOr<Tensor> EmptyLike(const Tensor& t, DType dtype);

  // `t` itself if it is contiguous, and else a contiguous copy, made on the stream.
  absl::StatusOr<Tensor> Contiguous(const Tensor& t);

  // Pushes `t` on the stack of saved tensors; does nothing if keep_for_backward() is false. O(1); the bytes are shared,
  // not copied.
  void Save(Tensor t);

  // The tensor saved last; kFailedPrecondition if the stack is empty: Backward without its Forward, or twice.
  absl::StatusOr<Tensor> Restore();

  // For layers that draw random numbers: the state to draw from, until the next call. Layers must draw in the same
  // order on all ranks. kInvalidArgument for a value out of its range.
  absl::Status set_random_state(const RandomState& state);

  // The next draw, which is saved for backward as a tensor is, on a separate stack; RestoreDraw returns the one that
  // was saved last. kFailedPrecondition if no state was set, or nothing is saved.
  absl::StatusOr<RandomDraw> NextDraw();
  absl::StatusOr<RandomDraw> RestoreDraw();

  // For a module that computes a loss, and its gradient in the same pass (LinearCrossEntropyLoss): the factor of that
  // gradient, from 1 / (number of micro-batches) and the scale of a gradient scaler. 1 unless it was set before
  // forward.
  void set_loss_scale(LossScale scale) { loss_scale_ = std::move(scale); }
  const LossScale& loss_scale() const { return loss_scale_; }

  // For activation checkpointing. SaveForReplay saves the inputs of a part of the pass and the number of draws so far;
  // Inner is the tape to run that part on, which keeps nothing; Replay is the tape to run it on again, which keeps, and
  // repeats the draws of the first run.
  void SaveForReplay(TensorList inputs);
  Tape Inner();
  struct Replay;
  absl::StatusOr<Replay> RestoreForReplay();

 private:
  absl::StatusOr<Tensor> EmptyWithStride(DType dtype, Shape shape, int64_t row_stride);

  Stream& stream_;
  const LayerOps& ops_;
  bool keep_for_backward_;
  bool training_;
  std::vector<Tensor> saved_;
  struct SavedList {
    size_t size = 0;  // in saved_
    uint32_t draws = 0;
  };
  std::vector<SavedList> saved_lists_;
  // Shared with inner tapes, whose draws count too.
  struct Draws {
    std::optional<RandomState> state;
    uint32_t count = 0;
  };
  std::shared_ptr<Draws> draws_ = std::make_shared<Draws>();
  std::vector<uint32_t> saved_draws_;
  LossScale loss_scale_ = 1.0f;
  // The bound on how far the host runs ahead; tape.cc explains it.
  int64_t bytes_since_mark_ = 0;
  Event mark_;  // in the stream, some time ago
};

struct Tape::Replay {
  TensorList inputs;
  Tape tape;
};

}  // namespace fsdp

#endif  // FSDP_NN_TAPE_H_
