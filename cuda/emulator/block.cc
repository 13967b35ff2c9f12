// SPDX-License-Identifier: Apache-2.0
//
// How one block runs. Each thread is a fiber; at any time one fiber runs, until it waits:
//
//   kNotStarted --Resume--> kRunnable --__syncthreads--> kAtBarrier --ReleaseBarrier--> kRunnable ... --return--> kDone
//                                     --warp exchange--> kInWarp    --last lane comes-> kRunnable
//
// RunBlock resumes warp after warp, the threads of each again and again until none can run. Then all live threads must
// be at one barrier (the same source location), else the kernel is wrong and the process ends with both places. Fibers
// are kept from block to block.
//
// The emulator finds: a missing barrier (each warp runs as far ahead of the next as barriers permit, and the order is
// reversed after each one, so in one of the two orders a value is read before it is written, or overwritten before it
// is read), asynchronous copies without a wait or with a destination that is still read (it is NaN from the start of a
// copy to the wait), barriers in divergent code, warp operations with a wrong mask, shared memory read before it is
// written (it is full of NaN) or written out of bounds. It does not model time, caches, weak memory order, warps that
// run in lockstep, or blocks that run at the same time: blocks run one after the other, so a race between blocks is not
// found.

#include "fsdp/cuda/emulator/block.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fsdp/cuda/emulator/fiber.h"

namespace fsdp {
namespace {

// The guard after the requested shared memory.
constexpr size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xa5};

thread_local EmulatedBlock* current = nullptr;

// Ends the process, because the behaviour of the kernel is undefined.
[[noreturn]] void Refuse(const char* what, const SourcePlace& a, const SourcePlace& b) {
  std::fprintf(stderr, "CUDA emulator: %s: thread (%u, %u, %u) of block (%u, %u, %u), %s:%u and %s:%u\n", what,
               threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z, a.file_name(), a.line(),
               b.file_name(), b.line());
  std::abort();
}

// Two calls wait at the same barrier if they come from the same place in the source.
bool SamePlace(const SourcePlace& a, const SourcePlace& b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

}  // namespace

EmulatedBlock::EmulatedBlock(const KernelShape& shape, const std::function<void()>& thread)
    : shape_(shape),
      thread_(thread),
      num_threads_(shape.block.x * shape.block.y * shape.block.z),
      threads_(num_threads_),
      warps_((num_threads_ + kWarp - 1) / kWarp),
      shared_(shape.shared_bytes + kGuardBytes) {}

EmulatedBlock::~EmulatedBlock() = default;

EmulatedBlock& EmulatedBlock::Current() { return *current; }

bool EmulatedBlock::RunKernel(const KernelShape& shape, const std::function<void()>& thread) {
  EmulatedBlock block(shape, thread);
  current = &block;
  gridDim = shape.grid;
  blockDim = shape.block;
  unsigned number = 0;
  for (unsigned z = 0; z < shape.grid.z; ++z) {
    for (unsigned y = 0; y < shape.grid.y; ++y) {
      for (unsigned x = 0; x < shape.grid.x; ++x) {
        blockIdx = {x, y, z};
        if (!block.RunBlock(number++)) return false;
      }
    }
  }
  return true;
}

bool EmulatedBlock::RunBlock(unsigned number) {
  threads_.assign(num_threads_, Thread());
  warps_.assign(warps_.size(), Warp());
  std::memset(shared_.data(), 0xff, shape_.shared_bytes);
  std::memset(shared_.data() + shape_.shared_bytes, static_cast<int>(kGuard), kGuardBytes);
  bool descending = number % 2 != 0;
  while (true) {
    while (ResumeAll(descending)) {
    }
    if (trapped_) return false;
    const bool done =
        std::all_of(threads_.begin(), threads_.end(), [](const Thread& t) { return t.state == State::kDone; });
    if (done) break;
    ReleaseBarrier();
    descending = !descending;
  }
  CheckGuard();
  return true;
}

bool EmulatedBlock::ResumeAll(bool descending) {
  bool ran = false;
  for (size_t i = 0; i < warps_.size(); ++i) {
    const size_t warp = descending ? warps_.size() - 1 - i : i;
    while (ResumeWarp(static_cast<unsigned>(warp) * kWarp, descending)) ran = true;
  }
  return ran;
}

bool EmulatedBlock::ResumeWarp(unsigned first, bool descending) {
  bool ran = false;
  const unsigned lanes = std::min<unsigned>(kWarp, num_threads_ - first);
  for (unsigned i = 0; i < lanes && !trapped_; ++i) {
    const unsigned thread = first + (descending ? lanes - 1 - i : i);
    if (threads_[thread].state != State::kNotStarted && threads_[thread].state != State::kRunnable) continue;
    Resume(thread);
    ran = true;
  }
  return ran;
}

void EmulatedBlock::ReleaseBarrier() {
  const Thread* first = nullptr;
  for (Thread& thread : threads_) {
    if (thread.state == State::kInWarp) {
      Refuse("a thread waits for lanes of its warp that do not come", thread.place, thread.place);
    }
    if (thread.state == State::kDone) continue;
    if (first == nullptr) first = &thread;
    if (!SamePlace(first->place, thread.place)) {
      Refuse("threads of one block wait at different barriers", first->place, thread.place);
    }
  }
  for (Thread& thread : threads_) {
    if (thread.state == State::kDone) {
      Refuse("a thread has returned while others of its block wait at a barrier", first->place, first->place);
    }
    thread.state = State::kRunnable;
  }
}

void EmulatedBlock::Resume(unsigned number) {
  Thread& thread = threads_[number];
  if (thread.fiber == nullptr) thread.fiber = TakeFiber();
  threadIdx = {number % shape_.block.x, number / shape_.block.x % shape_.block.y,
               number / shape_.block.x / shape_.block.y};
  thread.state = State::kRunnable;
  running_ = thread.fiber;
  thread.fiber->Resume();
  if (thread.state == State::kDone) idle_.push_back(std::exchange(thread.fiber, nullptr));
}

Fiber* EmulatedBlock::TakeFiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>([this] { RunThreads(); }));
    return fibers_.back().get();
  }
  Fiber* fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

void EmulatedBlock::RunThreads() {
  while (true) {
    thread_();
    Yield(State::kDone, {});
  }
}

unsigned EmulatedBlock::Self() const {
  return threadIdx.x + shape_.block.x * (threadIdx.y + shape_.block.y * threadIdx.z);
}

void EmulatedBlock::Yield(State state, const SourcePlace& place) {
  Thread& self = threads_[Self()];
  self.state = state;
  self.place = place;
  running_->Suspend();
}

void EmulatedBlock::AwaitBlock(const SourcePlace& place) { Yield(State::kAtBarrier, place); }

void EmulatedBlock::AwaitWarp(unsigned mask, const SourcePlace& place) { Exchange(mask, 0, place); }

const uint64_t* EmulatedBlock::Exchange(unsigned mask, uint64_t value, const SourcePlace& place) {
  return MeetWarp(mask, value, place, nullptr);
}

void EmulatedBlock::RunTogether(uint64_t value, const SourcePlace& place, void (*f)(const uint64_t* values)) {
  MeetWarp(~0u, value, place, f);
}

// The lanes of `mask` arrive one after the other and leave their values; the last one releases the others. Two buffers
// alternate: a lane may reach the next exchange before another has read the values of this one, but not the exchange
// after that.
const uint64_t* EmulatedBlock::MeetWarp(unsigned mask, uint64_t value, const SourcePlace& place,
                                        void (*f)(const uint64_t* values)) {
  const unsigned self = Self();
  Warp& warp = warps_[self / kWarp];
  const unsigned lane = self % kWarp;
  if (warp.arrived == 0) {
    warp.mask = mask;
    warp.place = place;
  }
  if (!SamePlace(warp.place, place)) Refuse("threads of one warp wait at different places", warp.place, place);
  if (warp.mask != mask || (mask >> lane & 1) == 0) Refuse("threads of one warp name other lanes", warp.place, place);
  uint64_t* values = warp.values[warp.turn % 2];
  values[lane] = value;
  warp.arrived |= 1u << lane;
  // Lanes beyond the block's last thread do not exist.
  const unsigned first = self / kWarp * kWarp;
  const unsigned lanes = num_threads_ - first >= kWarp ? ~0u : (1u << (num_threads_ - first)) - 1;
  if (warp.arrived != (mask & lanes)) {
    Yield(State::kInWarp, place);
    return values;
  }
  if (f != nullptr) f(values);
  warp.arrived = 0;
  ++warp.turn;
  for (unsigned other = first; other < std::min(first + kWarp, num_threads_); ++other) {
    if (threads_[other].state == State::kInWarp) threads_[other].state = State::kRunnable;
  }
  return values;
}

void EmulatedBlock::StartCopy(const AsyncCopy& copy) {
  std::memset(copy.to, 0xff, copy.bytes);
  threads_[Self()].copies.push_back(copy);
}

void EmulatedBlock::CommitCopies() {
  Thread& self = threads_[Self()];
  self.groups.push_back(std::exchange(self.copies, {}));
}

void EmulatedBlock::AwaitCopies(size_t pending) {
  auto& groups = threads_[Self()].groups;
  while (groups.size() > pending) {
    for (const AsyncCopy& copy : groups.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, copy.bytes);
      } else {
        std::memcpy(copy.to, copy.from, copy.bytes);
      }
    }
    groups.erase(groups.begin());
  }
}

void EmulatedBlock::Trap() {
  trapped_ = true;
  Yield(State::kDone, {});
  std::abort();  // not reached: a trapped block is not resumed
}

void EmulatedBlock::CheckGuard() const {
  const auto is_guard = [](std::byte b) { return b == kGuard; };
  if (!std::all_of(shared_.begin() + static_cast<std::ptrdiff_t>(shape_.shared_bytes), shared_.end(), is_guard)) {
    Refuse("a kernel wrote past its shared memory", {}, {});
  }
}

}  // namespace fsdp
