// SPDX-License-Identifier: Apache-2.0
#include "fsdp/cuda/emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "fsdp/base/check.h"

// Switching with swapcontext makes two system calls, so it only starts fibers; afterwards setjmp and longjmp switch.
// The sanitizers do not let longjmp leave a stack: under a sanitizer swapcontext makes all switches, and announces
// each.
#if defined(__SANITIZE_THREAD__)
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}
#define FSDP_SANITIZED_FIBERS 1
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define FSDP_SANITIZED_FIBERS 1
#else
#define FSDP_SANITIZED_FIBERS 0
#endif

namespace fsdp {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

// The stack is mapped without reserving memory, so that unused pages of a thousand stacks cost nothing. A stack grows
// downwards: its lowest page is made inaccessible, and an overflow is a SIGSEGV instead of a write into the next stack.
Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  void* memory =
      mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  Check(memory != MAP_FAILED, "memory for a fiber's stack");
  stack_ = static_cast<std::byte*>(memory);
  mprotect(stack_, kPage, PROT_NONE);
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_ + kPage;
  context_.uc_stack.ss_size = kStackBytes;
  // No successor: the body never returns (Main).
  context_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  // makecontext passes ints.
  makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::Main), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
#if defined(__SANITIZE_THREAD__)
  sanitizer_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(sanitizer_);
#endif
  munmap(stack_, kPage + kStackBytes);
}

// Runs on the new stack.
void Fiber::Main(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<Fiber*>(static_cast<uintptr_t>(high) << 32 | low);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->caller_stack_, &self->caller_stack_bytes_);
#endif
  self->body_();
  CheckFailed("a fiber's body returned", __FILE__, __LINE__);
}

#if FSDP_SANITIZED_FIBERS

void Fiber::Resume() {
#if defined(__SANITIZE_THREAD__)
  sanitizer_caller_ = __tsan_get_current_fiber();
  // Just before the switch: from here on ThreadSanitizer attributes accesses to the fiber.
  __tsan_switch_to_fiber(sanitizer_, 0);
#else
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_ + kPage, kStackBytes);
#endif
  swapcontext(&caller_context_, &context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::Suspend() {
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(sanitizer_caller_, 0);
#else
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, caller_stack_, caller_stack_bytes_);
#endif
  swapcontext(&context_, &caller_context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &caller_stack_, &caller_stack_bytes_);
#endif
}

#else

void Fiber::Resume() {
  if (_setjmp(caller_) != 0) return;
  if (started_) _longjmp(here_, 1);
  started_ = true;
  setcontext(&context_);
}

void Fiber::Suspend() {
  // The fortified longjmp would refuse the jump to another stack (BUILD.bazel).
  if (_setjmp(here_) == 0) _longjmp(caller_, 1);
}

#endif  // FSDP_SANITIZED_FIBERS

}  // namespace fsdp
