// SPDX-License-Identifier: Apache-2.0
#include "fsdp/cuda/emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>
#include <vector>

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

// The stacks of a thread's fibers, of `bytes` each. The stacks of destroyed fibers are kept for the next ones: to map a
// thousand stacks and to touch their first pages takes longer than most kernels.
class Stacks {
 public:
  explicit Stacks(size_t bytes) : bytes_(kPage + bytes) {}
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() {
    for (std::byte* stack : unused_) munmap(stack, bytes_);
  }

  // Mapped without reserving memory, so that unused pages cost nothing. A stack grows downwards: its lowest page is
  // made inaccessible, and an overflow is a SIGSEGV instead of a write into the next stack.
  std::byte* Take() {
    if (!unused_.empty()) {
      std::byte* const stack = unused_.back();
      unused_.pop_back();
      return stack;
    }
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    Check(memory != MAP_FAILED, "memory for a fiber's stack");
    mprotect(memory, kPage, PROT_NONE);
    return static_cast<std::byte*>(memory);
  }

  void Return(std::byte* stack) {
    // As many as a block has threads. Under a sanitizer none: a body does not return, so AddressSanitizer still guards
    // the variables of the stack's last fiber.
    constexpr size_t kMost = FSDP_SANITIZED_FIBERS ? 0 : 1024;
    if (unused_.size() < kMost) {
      unused_.push_back(stack);
    } else {
      munmap(stack, bytes_);
    }
  }

 private:
  const size_t bytes_;
  std::vector<std::byte*> unused_;
};

Stacks& StacksOfThisThread(size_t bytes) {
  thread_local Stacks stacks(bytes);
  return stacks;
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(StacksOfThisThread(kStackBytes).Take()) {
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
  StacksOfThisThread(kStackBytes).Return(stack_);
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
