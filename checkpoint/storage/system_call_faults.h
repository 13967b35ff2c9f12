// SPDX-License-Identifier: Apache-2.0
//
// SystemCallFaults: makes system calls of a test's own process do what they may do at any time: be interrupted by a
// signal, or do less than they were asked to. The linker puts these wrappers between the program and libc, and between
// the program and liburing, so that what runs is the code that ships, from the loop around pread to the queue of direct
// writes:
//
//   SystemCallFaults::Begin(SystemCallFaults::Kind::kInterrupt, k);   // the k-th call that can be
//   ... save, load, verify ...
//   const int64_t calls = SystemCallFaults::End();                    // how many could be
//
// open, fallocate and fsync are interrupted; pread, preadv2 and pwrite are too, and are cut short. What io_uring
// is given to read or write is interrupted as the kernel does it: by a completion of -EAGAIN (the submitted entry is
// pointed at a pipe that is empty or full), or by -EINTR of the submission; and it is cut short by halving it. Nothing
// is synced, so that tests are fast. Global; Begin and End while one thread runs, calls from any.
#ifndef FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_FAULTS_H_
#define FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_FAULTS_H_

#include <cstdint>

namespace fsdp {

class SystemCallFaults {
 public:
  enum class Kind : uint8_t { kInterrupt, kCutShort };

  // At every call that can be, once, and then it is repeated undisturbed.
  static constexpr int64_t kEvery = -1;

  // From now on, counts calls; `kind` happens to the call `at`, from 1 (0: to none, or kEvery).
  static void Begin(Kind kind, int64_t at);

  // Stops. The calls that were counted.
  static int64_t End();

  // Faults since the program began.
  static int64_t injected();
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_FAULTS_H_
