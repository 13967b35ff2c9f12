// SPDX-License-Identifier: Apache-2.0
//
// PayloadReader: where the writers of checkpoint/ (hdf5_sink.h, safetensors_writer.h) pull elements from, piece by
// piece, so that what is written never has to be in memory as a whole.
#ifndef FSDP_CHECKPOINT_SOURCE_PAYLOAD_READER_H_
#define FSDP_CHECKPOINT_SOURCE_PAYLOAD_READER_H_

#include <functional>

#include "absl/status/status.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Puts elements `interval` of tensor `key`, in the dtype that the contents say, at `out`. Called from several threads.
using PayloadReader = std::function<absl::Status(const StateKey& key, const Interval& interval, void* out)>;

// Reads from tensors held in host memory. `state` must outlive the reader, and hold every element that is asked for:
// kFailedPrecondition names the tensor and the first element that it lacks.
PayloadReader ReadFromMemory(const StateDict& state);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_PAYLOAD_READER_H_
