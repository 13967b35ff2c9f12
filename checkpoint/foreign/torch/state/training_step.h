// SPDX-License-Identifier: Apache-2.0
//
// TrainingStep: how many steps a checkpoint has seen, by its counters. The rule: the counter inside the fewest dicts,
// and of several the first of
//
//   step, global_step, global_steps, iteration, iter_num, iter, num_updates, number_training_updates
//
// (step_counter.h). Without one, "epoch" at the top. Two of one name and depth with different values make the step
// unknown. Counters inside of optimizers and of schedulers ("lr_scheduler") do not count.
// Three programs keep theirs elsewhere: fairseq in the last element of "optimizer_history", Composer as "batch" of a
// "timestamp", ESPnet the epoch in a "reporter".
// A counter is a whole number that is not negative: an int, a float, a string of digits, or a tensor of one element.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TRAINING_STEP_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TRAINING_STEP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

class TrainingStep {
 public:
  // `read` reads the tensors that have such a name; null: they are no counters.
  TrainingStep(const TorchLeafTypes& tensors, const TorchTensorReader& read) : tensors_(tensors), read_(read) {}

  // Looks at the value with path `name`, whose last key is `key`, inside of `depth` dicts, and at the dicts in it.
  // Errors of reading.
  absl::Status Add(const std::string& name, const std::string& key, int depth, const TorchNode& node);

  // nullopt: unknown.
  std::optional<int64_t> step() const { return is_ambiguous_ ? std::nullopt : step_; }

  // `step 7 is "train_state.step"`, or why it is unknown although there are counters; empty for "step" at the top, and
  // if there are none.
  std::string note() const;

 private:
  // Epochs last; the depth; the place in the list. The least counts.
  using Rank = std::tuple<bool, int, size_t>;

  static std::optional<Rank> RankOf(const std::string& key, int depth);
  absl::Status AddTensor(const std::string& name, const std::string& key, int depth, int tensor);
  void AddValue(const std::string& name, const std::string& key, int depth, const PythonJson& value);
  void AddMembers(const std::string& name, const std::string& key, int depth, const PythonJson& dict);
  void Take(const std::string& name, Rank rank, int64_t value);

  const TorchLeafTypes& tensors_;
  const TorchTensorReader& read_;
  std::optional<int64_t> step_;
  std::string name_;  // of the counter that step_ is from
  Rank rank_ = {};
  std::string other_;  // of a counter with the same rank and another value
  bool is_ambiguous_ = false;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TRAINING_STEP_H_
