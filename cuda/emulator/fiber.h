// SPDX-License-Identifier: Apache-2.0
//
// Fiber: a separate stack on which a thread runs a body until the body suspends itself; it emulates one thread of a
// block. Fibers are used instead of threads, because a block has up to 1024 of them and a kernel some hundred barriers:
// a switch takes some 10 ns. Use it only on the thread that created it.
#ifndef FSDP_CUDA_EMULATOR_FIBER_H_
#define FSDP_CUDA_EMULATOR_FIBER_H_

#include <ucontext.h>

#include <csetjmp>
#include <cstddef>
#include <functional>

namespace fsdp {

class Fiber {
 public:
  // `body` must not return; it starts at the first Resume. Objects on its stack are not destroyed with the Fiber. The
  // stack has 256 KiB; an overflow is a SIGSEGV.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Starts the body, or continues it after its last Suspend; returns at the next one. Not from inside of the body.
  void Resume();

  // Inside the body: returns to Resume's caller, and from this call at the next Resume.
  void Suspend();

 private:
  // Large, because kernels keep tiles in "registers", that is, on the stack.
  static constexpr size_t kStackBytes = 256 << 10;

  // The first function on the new stack; gets the Fiber's address in two halves, as makecontext passes ints.
  static void Main(unsigned high, unsigned low);

  std::function<void()> body_;
  // Mapped, not allocated: pages that the kernel never touches take no memory. Its lowest page is a guard.
  std::byte* const stack_;
  bool started_ = false;
  ucontext_t context_;  // the start of the body; with a sanitizer, the point at which it continues
  // Used only under a sanitizer; there swapcontext makes every switch.
  ucontext_t caller_context_;
  jmp_buf here_;    // the point at which the body continues
  jmp_buf caller_;  // in Resume
  void* sanitizer_ = nullptr;
  void* sanitizer_caller_ = nullptr;
  const void* caller_stack_ = nullptr;  // for AddressSanitizer
  size_t caller_stack_bytes_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CUDA_EMULATOR_FIBER_H_
