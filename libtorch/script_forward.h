// SPDX-License-Identifier: Apache-2.0
//
// A forward of TorchScript whose torch.jit.fork starts no threads.
#ifndef FSDP_LIBTORCH_SCRIPT_FORWARD_H_
#define FSDP_LIBTORCH_SCRIPT_FORWARD_H_

#include <torch/script.h>

#include <vector>

namespace fsdp {

// Calls module.forward(inputs), but runs the script's forks immediately, on the calling thread: a sharded module
// computes on one thread, since gathering a unit is collective and all ranks must do it in the same order. Throws
// everything that forward throws.
c10::IValue ForwardOnThisThread(const torch::jit::Module& module, std::vector<c10::IValue> inputs);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_SCRIPT_FORWARD_H_
