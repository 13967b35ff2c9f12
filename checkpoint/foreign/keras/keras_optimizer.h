// SPDX-License-Identifier: Apache-2.0
//
// KerasOptimizer: which variable of the model each variable of an optimizer belongs to. The file has them by number:
// 0 is the iteration, 1 the learning rate, and then, for each trained variable of the model in the order of the model,
// the slots of the class: momentum and velocity of AdamW. The order is in the config of the model, which only .keras
// archives have; without it, or for a model or an optimizer whose order is not known, the numbers stay numbers. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_OPTIMIZER_H_
#define FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_OPTIMIZER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_listing.h"
#include "fsdp/checkpoint/foreign/keras/keras_names.h"

namespace fsdp {

inline constexpr int64_t kMaxKerasConfigBytes = int64_t{64} << 20;

// A variable of the optimizer.
struct KerasSlot {
  size_t dataset = 0;    // in the listing
  std::string variable;  // the name of the model's
  std::string slot;      // "momentum"
};

// The slots, from the text of config.json. kInvalidArgument with the reason if their order is not known or does not fit
// the shapes; kDataLoss for a text that is no config.
absl::StatusOr<std::vector<KerasSlot>> SlotsOfKeras(std::string_view config, const Hdf5Listing& listing,
                                                    const KerasNames& names);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_OPTIMIZER_H_
