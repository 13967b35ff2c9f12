// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/backward_thread.h"

#include <c10/core/AutogradState.h>

namespace fsdp {
namespace {

// The BackwardOnCallers of the calling thread.
struct Living {
  int count = 0;
  bool before = true;  // the setting from before the first of them
};

Living& LivingHere() {
  thread_local Living living;
  return living;
}

}  // namespace

BackwardOnCaller::BackwardOnCaller() {
  Living& living = LivingHere();
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  if (living.count++ == 0) living.before = state.get_multithreading_enabled();
  state.set_multithreading_enabled(false);
}

BackwardOnCaller::~BackwardOnCaller() {
  // On another thread this would change the setting of that thread: leave both as they are.
  if (!is_mine()) return;
  Living& living = LivingHere();
  if (--living.count == 0) c10::AutogradState::get_tls_state().set_multithreading_enabled(living.before);
}

}  // namespace fsdp
