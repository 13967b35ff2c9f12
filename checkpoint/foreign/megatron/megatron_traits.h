// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_TRAITS_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_TRAITS_H_

#include "fsdp/checkpoint/source/format_traits.h"

namespace fsdp {

// Of every source of a Megatron-Core checkpoint, and of the driver.
inline const FormatTraits& MegatronTraits() {
  static const auto* traits = new FormatTraits{.name = "megatron",
                                               .headline = "a checkpoint of Megatron-Core",
                                               .in_directory = "Megatron-Core's latest_checkpointed_iteration.txt",
                                               .has_writers = true,
                                               .keeps_step = true};
  return *traits;
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_TRAITS_H_
