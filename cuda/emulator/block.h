// SPDX-License-Identifier: Apache-2.0
//
// EmulatedBlock: runs a kernel block by block, each block's threads as fibers of the calling thread. A fiber runs until
// it waits for others, at a barrier or an exchange within its warp; fibers run in ascending order up to one barrier and
// in descending order up to the next, so that a missing barrier shows in one of them. Undefined behaviour of CUDA ends
// the process with a message instead: threads that wait at different barriers, or for a thread that has returned, and
// writes beyond the block's shared memory, which is initially full of NaN.
//
// The names that CUDA defines for kernels (threadIdx and the like) are here too.
#ifndef FSDP_CUDA_EMULATOR_BLOCK_H_
#define FSDP_CUDA_EMULATOR_BLOCK_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fsdp/cuda/emulator/source_place.h"

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};

// The coordinates of the fiber that currently runs on this thread.
inline constinit thread_local uint3 threadIdx = {};
inline constinit thread_local uint3 blockIdx = {};
inline constinit thread_local dim3 blockDim = {};
inline constinit thread_local dim3 gridDim = {};

namespace fsdp {

class Fiber;

// The sizes of a launch.
struct KernelShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
};

// A copy to shared memory that a thread has started (cuda/async_copy.h). `from` is null: zeros.
struct AsyncCopy {
  void* to;
  const void* from;
  size_t bytes;
};

class EmulatedBlock {
 public:
  // The limits of CUDA: lanes of a warp, threads of a block.
  static constexpr unsigned kWarp = 32;
  static constexpr unsigned kMaxThreads = 1024;

  // Runs `thread` for every thread of every block; returns false if one of them trapped. Blocks run in the order of
  // their numbers, x fastest, on the calling thread, which blocks until the kernel ends. After a trap the rest of the
  // kernel does not run.
  static bool RunKernel(const KernelShape& shape, const std::function<void()>& thread);

  // The block of the calling fiber. Only inside of a kernel.
  static EmulatedBlock& Current();

  // Only fibers call the following.

  // __syncthreads. `place` is the source location of the call, by which the emulator distinguishes barriers.
  void AwaitBlock(const SourcePlace& place);
  // __syncwarp. All lanes of `mask` must call, from one place in the source, else the process ends.
  void AwaitWarp(unsigned mask, const SourcePlace& place);

  // Passes `value` to the other threads in `mask` of the caller's warp; returns the 32 lanes' values, valid until the
  // caller's next exchange.
  const uint64_t* Exchange(unsigned mask, uint64_t value, const SourcePlace& place);

  // The last of the warp's 32 lanes to arrive calls f(values of all), which may use the memory to which they point,
  // because the others wait.
  void RunTogether(uint64_t value, const SourcePlace& place, void (*f)(const uint64_t* values));

  // The calling thread's asynchronous copies. StartCopy fills the destination with NaN; the AwaitCopies that waits for
  // a copy's group executes it.
  void StartCopy(const AsyncCopy& copy);
  void CommitCopies();
  // Waits for all groups but the latest `pending`.
  void AwaitCopies(size_t pending);

  // __trap: the kernel ends, and RunKernel returns false.
  [[noreturn]] void Trap();
  // The block's dynamic shared memory, full of NaN when the block starts.
  std::byte* shared_memory() { return shared_.data(); }
  size_t shared_bytes() const { return shape_.shared_bytes; }

 private:
  // The state of a thread; block.cc has the transitions.
  enum class State : uint8_t { kNotStarted, kRunnable, kAtBarrier, kInWarp, kDone };

  struct Thread {
    State state = State::kNotStarted;
    Fiber* fiber = nullptr;
    SourcePlace place;  // the call at which it waits
    // Copies under way, in the order of their starts: the committed groups, and the rest.
    std::vector<std::vector<AsyncCopy>> groups;
    std::vector<AsyncCopy> copies;
  };

  // The current meeting of a warp.
  struct Warp {
    unsigned arrived = 0;  // lanes
    unsigned mask = 0;     // of the first lane that arrived
    SourcePlace place;
    uint64_t turn = 0;  // exchanges so far; two buffers, because a lane may be one ahead of another
    uint64_t values[2][kWarp] = {};
  };

  // An object serves all blocks of a kernel, one after the other: RunBlock resets everything but the fibers.
  EmulatedBlock(const KernelShape& shape, const std::function<void()>& thread);
  ~EmulatedBlock();

  // Waits for the warp's lanes in `mask`; the last one calls `f`, if any, before it releases the others.
  const uint64_t* MeetWarp(unsigned mask, uint64_t value, const SourcePlace& place, void (*f)(const uint64_t* values));
  // Runs all threads of a block to their end; false after a trap. Blocks of odd number begin in descending order.
  bool RunBlock(unsigned number);
  // Resumes the threads of each warp, warp after warp, until none can run; false if none could. ResumeWarp resumes each
  // thread of the warp whose first is `first`, once.
  bool ResumeAll(bool descending);
  bool ResumeWarp(unsigned first, bool descending);
  void ReleaseBarrier();  // all live threads are at one barrier, or the process ends
  // Resume runs a thread until it waits or returns; Yield, on the fiber, returns control with the new state.
  void Resume(unsigned thread);
  void Yield(State state, const SourcePlace& place);
  // Ends the process if the kernel wrote beyond its shared memory.
  void CheckGuard() const;
  // Number of the running thread in its block.
  unsigned Self() const;
  // An unused fiber, or a new one if all are used. Fibers are kept, because a new one makes two system calls.
  Fiber* TakeFiber();
  void RunThreads();  // a fiber's body

  const KernelShape shape_;
  const std::function<void()>& thread_;
  const unsigned num_threads_;
  // By the number of the thread in its block, x fastest; warps_ by the number of the warp.
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::byte> shared_;
  // All fibers, and the unused ones.
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* running_ = nullptr;
  bool trapped_ = false;
};

// Puts the kernel on `stream`, whose thread runs it, block after block. Makes CUDA's checks of a launch (sizes, shared
// memory): cudaErrorInvalidConfiguration. `kernel` is its address, which identifies its attributes.
cudaError_t EmulateKernel(cudaStream_t stream, const void* kernel, const KernelShape& shape,
                          std::function<void()> thread);

}  // namespace fsdp

#endif  // FSDP_CUDA_EMULATOR_BLOCK_H_
