// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/backward_thread.h"

#include <c10/core/AutogradState.h>

namespace fsdp {
namespace {

// Of the calling thread.
struct Living {
  int count = 0;
  bool before = true;  // the first one was made
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
  if (!is_mine()) return;
  Living& living = LivingHere();
  if (--living.count == 0) c10::AutogradState::get_tls_state().set_multithreading_enabled(living.before);
}

}  // namespace fsdp
