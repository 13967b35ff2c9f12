// SPDX-License-Identifier: Apache-2.0
//
// StepCounter: the names under which programs of others count the steps of a run, and the counter in the
// trainer_state.json that Hugging Face's Trainer puts next to the weights. In a saved dict, training_step.h looks for
// the names.
#ifndef FSDP_CHECKPOINT_SOURCE_STEP_COUNTER_H_
#define FSDP_CHECKPOINT_SOURCE_STEP_COUNTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

// The place of `name` among the names of counters; the first counts. nullopt for any other name.
std::optional<size_t> StepCounterOrder(std::string_view name);

// An epoch is no step, but a program that counts only epochs has no other number for its checkpoints.
bool IsEpochCounter(std::string_view name);

// The number that a counter of this value is: whole, from 0 to 2^53 for a double, from digits for a text.
std::optional<int64_t> StepOfNumber(double value);
std::optional<int64_t> StepOfText(std::string_view text);

// True if the JSON `text`, an extra value that is a dict or has one inside, has a counter that is `step`.
bool HasStepCounter(std::string_view text, int64_t step);

struct TrainerState {
  int64_t step = -1;  // -1: unknown
  std::string note;   // `step 500 is "global_step" of trainer_state.json`, or why that says nothing; may be empty
};

// The step in the trainer_state.json next to the weights at `path`, a file or a directory; of a directory that
// Accelerate made inside a checkpoint (pytorch_model_fsdp_0, optimizer_0), the one next to that. An unreadable file is
// a note: weights do not depend on it.
TrainerState ReadTrainerState(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_STEP_COUNTER_H_
