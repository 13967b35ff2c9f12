// SPDX-License-Identifier: Apache-2.0
//
// The drivers of this project's own format, "hdf5": a checkpoint directory, and a ROOT of step-* directories. They are
// two drivers because the first is tried before all other formats and the second after models: manifest.json identifies
// a checkpoint, while a directory with steps may also be an exported model, which then takes precedence.
#ifndef FSDP_CHECKPOINT_NATIVE_CHECKPOINT_DRIVER_H_
#define FSDP_CHECKPOINT_NATIVE_CHECKPOINT_DRIVER_H_

#include <memory>
#include <optional>

#include "fsdp/checkpoint/source/format_driver.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// A checkpoint directory: manifest.json, checkpoint.h5 and, unless it is FULL, one file per rank. A destination that
// ends in .h5 or .hdf5 is one FULL file that stands alone, without manifest and digests (WriteHdf5File).
struct Hdf5Target {
  StateDictType type = StateDictType::kFull;
  std::optional<int> world_size = {};  // of SHARDED and LOCAL, 1 to 99999; default: the source's
  int parity = 0;                      // parity files of SHARDED and LOCAL; 0 for FULL, which has no rank files
};

const FormatDriver& CheckpointDriver();
const FormatDriver& CheckpointRootDriver();
std::unique_ptr<FormatWriter> WriterFor(const Hdf5Target& target);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_CHECKPOINT_DRIVER_H_
