// SPDX-License-Identifier: Apache-2.0
//
// Fiber: a stack of its own on which a thread runs a body until the body suspends itself; one thread of an emulated
// block. Fibers and not threads, because a block has up to 1024 of them and a kernel some hundred barriers: a switch
// takes some 10 ns. To be used only by the thread that made it.
#ifndef FSDP_CUDA_EMULATOR_FIBER_H_
#define FSDP_CUDA_EMULATOR_FIBER_H_

#include <ucontext.h>

#include <csetjmp>
#include <cstddef>
#include <functional>

namespace fsdp {

class Fiber {
 public:
  // `body` must not return. What its stack holds when this is destroyed is not destroyed. `body` starts at the first
  // Resume. The stack has 256 KiB; an overflow is a SIGSEGV.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Starts the body, or goes on after its last Suspend; returns at the next one. Not from inside of the body.
  void Resume();

  // Inside the body: back to Resume's caller. Returns at the next Resume.
  void Suspend();

 private:
  // Kernels keep tiles in "registers", that is, on the stack.
  static constexpr size_t kStackBytes = 256 << 10;

  // The first function on the new stack; gets the Fiber's address in two halves, as makecontext passes ints.
  static void Main(unsigned high, unsigned low);

  std::function<void()> body_;
  // Mapped, not allocated: pages that the kernel never touches take no memory.
  std::byte* stack_ = nullptr;  // its lowest page is a guard
  bool started_ = false;
  ucontext_t context_;  // where the body starts; with a sanitizer, where it goes on
  // Used under a sanitizer alone, where swapcontext makes every switch.
  ucontext_t caller_context_;
  jmp_buf here_;    // where the body goes on
  jmp_buf caller_;  // in Resume
  void* sanitizer_ = nullptr;
  void* sanitizer_caller_ = nullptr;
  const void* caller_stack_ = nullptr;  // AddressSanitizer's
  size_t caller_stack_bytes_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CUDA_EMULATOR_FIBER_H_
