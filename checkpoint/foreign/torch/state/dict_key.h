// SPDX-License-Identifier: Apache-2.0
//
// DictKey: a key of a dict that holds tensors, as the name of a TorchNode's member: a text is its own name, and any
// other key (an id, None, a tuple, ...) has its JSON for a name. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DICT_KEY_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DICT_KEY_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_budget.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"

namespace fsdp {

struct DictKey {
  std::string text;
  bool is_json = false;                   // `text` is the JSON of the key
  std::optional<PythonJson> object = {};  // of a key that has no JSON: the member cannot be kept

  // Another spelling: in Python 1 and "1" are two keys, whose names are equal.
  void Respell();
};

// kResourceExhausted as JsonOfPickle.
absl::StatusOr<DictKey> DictKeyOf(PickleValue key, PickleBudget& budget);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DICT_KEY_H_
