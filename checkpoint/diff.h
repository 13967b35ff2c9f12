// SPDX-License-Identifier: Apache-2.0
//
// DiffCheckpoints: what differs between two checkpoints, in structure and in values, whatever their formats, kinds and
// world sizes are: those say where bytes lie, not what the state is. Reads both by pieces, in parallel, in bounded
// memory, and verifies digests where the formats have them.
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
  bool model_only = false;   // compare no optimizer and no extra values

  // Performance. Memory is two pieces of 16 MiB and some blocks for each thread.
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};
};

// A tensor that both have.
struct TensorDiff {
  std::string name;  // as A has it
  DType dtype_a = DType::kFloat32;
  DType dtype_b = DType::kFloat32;
  Shape shape_a;
  Shape shape_b;
  ValueDifference values;  // of no elements when the shapes differ

  // Whether it counts as equal: one dtype, one shape, all values within the tolerance.
  bool equal() const { return dtype_a == dtype_b && shape_a == shape_b && values.outside == 0; }
};

struct DiffReport {
  std::vector<std::string> only_in_a;  // names of tensors and texts, in A's order
  std::vector<std::string> only_in_b;
  std::vector<std::string> structure;  // sentences: a tensor here that is a text there, texts, aliases
  std::vector<TensorDiff> tensors;     // that both have, in A's order
  ValueDifference total;               // of all of them

  bool equal() const;
};

// A parameter that one side has under an alias only (tied weights) is compared with what the alias means. Aliases
// themselves are compared where both formats have them. An error is of reading: a difference never is one.
absl::StatusOr<DiffReport> DiffCheckpoints(const TensorSource& a, const TensorSource& b, const DiffOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_DIFF_H_
