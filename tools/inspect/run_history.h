// SPDX-License-Identifier: Apache-2.0
//
// RunHistory: what happened to each layer of a model from one checkpoint of a run to the next: norms, changes, and
// values that are not finite. It answers "where did it go wrong" without the logs of the run.
//
// A change needs two steps at the same time, and all of them would not fit into memory, nor their files into a process.
// So a group of steps is open at a time, and each of its tensors is read piece by piece, a piece from all steps in
// turn:
//
//   steps      1  2  3  4  5  6  7          piece 0: read 1, read 2 (change 1-2), read 3 (change 2-3), ...
//   group 1   [1  2  3  4]                  piece 1: the same, in another thread
//   group 2            [4  5  6  7]         4 is read again, only to compare 5 with it
#ifndef FSDP_TOOLS_INSPECT_RUN_HISTORY_H_
#define FSDP_TOOLS_INSPECT_RUN_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/nonfinite.h"

namespace fsdp {

// More steps are not read: of a longer run some at equal distances, with the first and the last.
inline constexpr size_t kMaxRunSteps = 200;

// The least RunHistoryOptions::max_memory.
inline constexpr int64_t kMinRunHistoryMemory = int64_t{64} << 20;

// A layer, or neighbouring ones (LayerIndex), in one step. Sums are over finite values of floating-point tensors.
struct LayerAtStep {
  int64_t numel = 0;           // of the model's tensors; 0: the step does not have the layer
  double squares = 0;          // of the model's values
  NonFinite nonfinite;         // of the model and of the optimizer's states
  double squares_before = 0;   // of the values of the step before, of tensors that both have
  double squares_changed = 0;  // of the differences
  bool has_change = false;     // false: the first step, or the step before it was not read

  double norm() const;

  // The norm of the difference, over the norm before; nullopt without a change.
  std::optional<double> change() const;

  void Add(const LayerAtStep& other);
};

struct RunStep {
  int64_t step = 0;
  std::string name;  // of its directory
  int world_size = 1;

  // Why it was not read, or not to its end; then it has no layers.
  std::string problem;

  std::vector<LayerAtStep> layers;  // by RunHistory::layers; empty with a problem

  // The sum of all layers.
  LayerAtStep model() const;
};

struct RunHistory {
  std::vector<RunStep> steps;       // oldest first
  std::vector<std::string> layers;  // in the order of a model
  size_t left_out = 0;              // steps beyond kMaxRunSteps
};

struct RunHistoryOptions {
  int64_t max_memory = int64_t{512} << 20;  // of the whole process, in bytes; at least kMinRunHistoryMemory
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};
};

// Reads the steps of the ROOT at `root`, and compares every value with its digest. A step that is damaged does not stop
// it (RunStep::problem). kNotFound, with all reasons, if no step can be read; kResourceExhausted if two steps do not
// fit into `max_memory`, or need more descriptors than the process may open, which the message says. Blocks.
absl::StatusOr<RunHistory> ReadRunHistory(const std::string& root, const RunHistoryOptions& options);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_RUN_HISTORY_H_
