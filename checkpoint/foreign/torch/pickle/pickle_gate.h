// SPDX-License-Identifier: Apache-2.0
//
// PickleGate: which names a pickle may refer to, by PickleOptions.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_GATE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_GATE_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_builder.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_input.h"

namespace fsdp {

class PickleGate {
 public:
  // `options` must outlive the gate.
  explicit PickleGate(const PickleOptions& options) : options_(options) {}

  // The only gate: every name passes here, from either opcode, before a value that refers to it is on the stack.
  // Refused by `input` if the options do not list it.
  absl::Status Check(std::string_view module, std::string_view name, const PickleInput& input) const;

  // True for an object that only its class could read: its parts have no meaning here.
  bool IsInert(const PickleBuilder& values, uint32_t id) const;

 private:
  const PickleOptions& options_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_GATE_H_
