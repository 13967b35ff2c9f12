// SPDX-License-Identifier: Apache-2.0
//
// SystemCallFaults: makes system calls of the test's own process do what they may do at any time: fail with EINTR, or
// transfer fewer bytes than they were asked to. The linker (--wrap) puts these wrappers between the program and libc,
// and between the program and liburing, so the code under test is the code that ships, from the loop around pread to
// the queue of direct writes:
//
//   SystemCallFaults::Begin(SystemCallFaults::Kind::kInterrupt, k);   // interrupt the k-th call that can be
//   ... save, load, verify ...
//   const int64_t calls = SystemCallFaults::End();                    // how many calls could have been interrupted
//
// open, fallocate and fsync can be interrupted; pread, preadv2 and pwrite can be interrupted and cut short. An entry of
// io_uring is interrupted as the kernel does it: by a completion of -EAGAIN (the submitted entry is pointed at a pipe
// that is empty or full), or by -EINTR of the submission; and it is cut short by halving it. Nothing is synced, so that
// tests are fast. State is global: call Begin and End while one thread runs; the system calls may come from any thread.
#ifndef FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_FAULTS_H_
#define FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_FAULTS_H_

#include <cstdint>

namespace fsdp {

class SystemCallFaults {
 public:
  enum class Kind : uint8_t { kInterrupt, kCutShort };

  // Every call that can have the fault has it once; its repetition goes through.
  static constexpr int64_t kEvery = -1;

  // From now on, counts the calls that can have `kind`, and injects it into call `at`, counted from 1; 0: into none.
  static void Begin(Kind kind, int64_t at);

  // Stops, and returns how many calls were counted.
  static int64_t End();

  // Faults since the program began.
  static int64_t injected();
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_FAULTS_H_
