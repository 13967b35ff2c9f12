// SPDX-License-Identifier: Apache-2.0
//
// PayloadReader: the source from which the writers of checkpoint/ (hdf5_sink.h, safetensors_writer.h) pull elements,
// piece by piece, so that the payload is never in memory as a whole.
#ifndef FSDP_CHECKPOINT_SOURCE_PAYLOAD_READER_H_
#define FSDP_CHECKPOINT_SOURCE_PAYLOAD_READER_H_

#include <functional>

#include "absl/status/status.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Copies elements `interval` of tensor `key`, in the dtype of the contents, to `out`. Called from several threads.
using PayloadReader = std::function<absl::Status(const StateKey& key, const Interval& interval, void* out)>;

// Reads from tensors held in host memory. `state` must outlive the reader, and hold every requested element:
// kFailedPrecondition names the tensor and the first missing element.
PayloadReader ReadFromMemory(const StateDict& state);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_PAYLOAD_READER_H_
