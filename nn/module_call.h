// SPDX-License-Identifier: Apache-2.0
//
// Further entry points of a module, such as encode or generate: functions that use a module's parameters and the
// modules below it as its own forward does, within the module's hooks, which is how FSDP unshards and reshards. A
// method that only calls Forward of the modules below would find the module's own parameters sharded.
//
//   const auto encode = [&](const TensorList& in, Tape& tape) { return encoder.Forward(in, tape); };
//   FSDP_ASSIGN_OR_RETURN(const TensorList states, CallForward(*model, {tokens}, tape, encode));
//
// They are PyTorch's register_fsdp_forward_method.
#ifndef FSDP_NN_MODULE_CALL_H_
#define FSDP_NN_MODULE_CALL_H_

#include <functional>

#include "absl/status/statusor.h"
#include "fsdp/nn/module.h"
#include "fsdp/nn/tape.h"

namespace fsdp {

// Outputs of inputs in a forward, gradients of inputs of gradients of outputs in a backward, as DoForwardList and
// DoBackwardList. May call the modules below the module that it is called for, but not that module.
using ModuleFunction = std::function<absl::StatusOr<TensorList>(const TensorList&, Tape&)>;

// Runs `forward` in place of the forward of `module`. Recomputation of `module` itself (set_recompute) does not apply:
// `forward` and the modules below save on the tape what they save. Other errors are those of Module::Forward.
absl::StatusOr<TensorList> CallForward(Module& module, TensorList inputs, Tape& tape, const ModuleFunction& forward);

// Runs `backward` in place of the backward of `module`, after a CallForward on the same tape. Other errors are those of
// Module::Backward.
absl::StatusOr<TensorList> CallBackward(Module& module, TensorList grad_outputs, Tape& tape,
                                        const ModuleFunction& backward);

}  // namespace fsdp

#endif  // FSDP_NN_MODULE_CALL_H_
