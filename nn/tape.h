// SPDX-License-Identifier: Apache-2.0
//
// Tape: one forward pass and its backward. It says where the work goes (stream, device, kernels) and keeps what
// backward will need. Saved tensors are a stack: a module's Backward restores in reverse what its Forward saved, so
// several forwards may be open at once, each on its own tape. Not thread-safe. Saved tensors hold their memory until
// they are restored or the tape is destroyed.
#ifndef FSDP_NN_TAPE_H_
#define FSDP_NN_TAPE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// The inputs or outputs of a module of several, in the order of its forward's arguments. An undefined tensor stands for
// an argument that is left out (a mask), and for a gradient that there is none of.
using TensorList = std::vector<Tensor>;

// What the layers of one pass draw random numbers from (dropout). A draw is a pure function of these, of its number
// within the pass and of the place of an element in the global batch, so the same samples get the same numbers on any
// number of ranks and in any division into micro-batches.
struct RandomState {
  uint64_t seed = 0;         // of the run
  uint64_t step = 0;         // optimizer steps before this one; below 2^40, with at most 2^24 draws
  int64_t first_sample = 0;  // place in the step's global batch of the first sample of this pass
  int64_t samples = 1;       // of this pass: the inputs of a layer that draws hold as many, one after another
};

// One layer's draw in a pass: the numbers of element i of sample s are those at s * (elements of a sample) + i of the
// sequence, under the state's seed.
struct RandomDraw {
  RandomState state;
  uint32_t number = 0;  // draws of the pass before this one

  uint64_t sequence() const { return state.step << 24 | number; }
};

class Tape {
 public:
  // `stream` and `ops` must outlive the tape. With `keep_for_backward` off (evaluation) nothing is saved.
  Tape(Stream& stream, const LayerOps& ops, bool keep_for_backward = true);

  Stream& stream() const { return stream_; }
  Device& device() const { return stream_.device(); }
  // The kernels of the stream's device.
  const LayerOps& ops() const { return ops_; }
  bool keep_for_backward() const { return keep_for_backward_; }
  // True in a pass that backward follows, also where this tape keeps nothing since activation checkpointing will run
  // the forward again. Layers that differ in training (dropout) ask it.
  bool training() const { return training_; }

  // New memory for work on stream(), contents unspecified: in the stream's order (tensor/ordered_memory.h) where it has
  // that. Elsewhere the caller may run ahead of the stream, whose finished work gives its memory back, by 64 MiB of
  // such memory; beyond that, this call waits for the stream, and returns the stream's error if it has one.
  // kResourceExhausted when the device has no room.
  absl::StatusOr<Tensor> Empty(DType dtype, Shape shape);

  // As Empty, with rows as far apart as the device's products like them (LayerOps::RowStride): contiguous on hosts, and
  // on GPUs perhaps padded. For outputs that only readers of padded rows get: LayerOps says which of its kernels are.
  absl::StatusOr<Tensor> EmptyRows(DType dtype, Shape shape);

  // New memory for elements of `dtype` in the places that those of `t` have, padding included.
  absl::StatusOr<Tensor> EmptyLike(const Tensor& t, DType dtype);

  // `t` itself if it is contiguous, and else a contiguous copy, made on the stream.
  absl::StatusOr<Tensor> Contiguous(const Tensor& t);

  // Pushes `t` on the stack of saved tensors; nothing where keep_for_backward() is false. O(1); the bytes are shared,
  // not copied.
  void Save(Tensor t);

  // The tensor saved last; kFailedPrecondition when there is none: Backward without its Forward, or twice.
  absl::StatusOr<Tensor> Restore();

  // For layers that draw random numbers: what they draw from, until the next call. Layers must draw in the same order
  // on all ranks. kInvalidArgument for a value out of its range.
  absl::Status set_random_state(const RandomState& state);

  // The next draw, which is saved for backward as a tensor is, on a stack of its own; RestoreDraw gives the one that
  // was saved last. kFailedPrecondition if no state was set, or nothing is saved.
  absl::StatusOr<RandomDraw> NextDraw();
  absl::StatusOr<RandomDraw> RestoreDraw();

  // For activation checkpointing. SaveForReplay saves the inputs of a part of the pass and how many draws there were;
  // Inner is the tape to run that part on, which keeps nothing; Replay is the tape to run it on again, which keeps, and
  // whose draws are those of the first run.
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
