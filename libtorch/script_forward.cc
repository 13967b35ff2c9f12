// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/script_forward.h"

#include <functional>
#include <utility>

namespace fsdp {

c10::IValue ForwardOnThisThread(const torch::jit::Module& module, std::vector<c10::IValue> inputs) {
  // A forked task runs inside the call that forks it.
  const auto at_once = [](std::function<void()> task) { task(); };
  const auto future = module.get_method("forward").run_async(std::move(inputs), {}, at_once);
  future->waitAndThrow();
  return future->value();
}

}  // namespace fsdp
