// SPDX-License-Identifier: Apache-2.0
//
// DiffCheckpoints: the differences between two checkpoints, in structure and in values. Formats, kinds and world sizes
// may differ: they determine the layout of the bytes, not the state. Reads both checkpoints by pieces, in parallel, in
// bounded memory, and verifies digests if the formats have them.
#ifndef FSDP_CHECKPOINT_DIFF_H_
#define FSDP_CHECKPOINT_DIFF_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/source/value_difference.h"

namespace fsdp {

struct DiffOptions {
  // Behaviour.
  Tolerance tolerance = {};  // by default values must be equal
  bool model_only = false;   // ignore optimizer and extra values
  bool list_equal = true;    // list tensors whose values are all equal in DiffReport::tensors, too

  // Performance. Memory is two pieces of 4 MiB and some blocks for each thread. The default exceeds the cores of a
  // small machine, so that some threads read while others compare.
  int io_threads = 6;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};
};

// A tensor that both checkpoints have.
struct TensorDiff {
  std::string name;  // in A
  DType dtype_a = DType::kFloat32;
  DType dtype_b = DType::kFloat32;
  Shape shape_a;
  Shape shape_b;
  ValueDifference values;  // numel is 0 when the shapes differ

  // Whether it counts as equal: one dtype, one shape, all values within the tolerance.
  bool equal() const { return dtype_a == dtype_b && shape_a == shape_b && values.outside == 0; }
};

// Tensors of both whose names differ by a prefix (name_prefixes.h).
struct RenamedTensors {
  std::string prefix_a;             // of A's name: empty, or with a dot at its end
  std::string prefix_b;             // of B's name
  std::vector<TensorDiff> tensors;  // as DiffReport::tensors, by A's name
  int64_t compared = 0;
  ValueDifference total;
};

struct DiffReport {
  std::vector<std::string> only_in_a;  // names of tensors and texts, in A's order
  std::vector<std::string> only_in_b;
  std::vector<std::string> structure;  // sentences: a tensor in one that is a text in the other; texts; aliases
  int64_t respelled_texts = 0;         // texts that are equal as JSON, but not in every byte: no difference
  std::vector<TensorDiff> tensors;     // tensors in both, in A's order, unless they are equal and not listed
  int64_t compared = 0;                // how many tensors both have
  ValueDifference total;               // of all tensors together
  RenamedTensors renamed;              // of only_in_a and only_in_b, which have their names too

  bool equal() const;
};

// A parameter that one side has only under an alias (tied weights) is compared with the alias's target. If the names of
// the model differ by a prefix, its tensors are compared under the common rest of their names. Aliases
// themselves are compared if both formats record them. Blocks until both are read. An error means that reading failed,
// or that `model_only` leaves nothing to compare (kInvalidArgument), never that the checkpoints differ.
absl::StatusOr<DiffReport> DiffCheckpoints(const TensorSource& a, const TensorSource& b, const DiffOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_DIFF_H_
