// SPDX-License-Identifier: Apache-2.0
//
// UnitStreams: the streams of a step. A model has its own set, or shares one with models that take turns, such as the
// parts of a pipeline (ShareCommCtx of fully_shard.h).
#ifndef FSDP_FSDP_UNITS_UNIT_STREAMS_H_
#define FSDP_FSDP_UNITS_UNIT_STREAMS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// One thread, like a Stream. The streams are of one device and never null.
struct UnitStreams {
  std::unique_ptr<Stream> compute;        // of layers and of the optimizer
  std::unique_ptr<Stream> unshard;        // of all-gathers
  std::unique_ptr<Stream> post_backward;  // of reduce-scatters
  std::unique_ptr<Stream> all_reduce;     // of all-reduces over replicas

  static absl::StatusOr<std::shared_ptr<UnitStreams>> Create(Device& device);

  // Waits for all work put on them so far; returns the first error. Blocks.
  absl::Status Synchronize();
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_STREAMS_H_
