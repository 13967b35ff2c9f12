// SPDX-License-Identifier: Apache-2.0
//
// SystemCallFaults: makes system calls of the test's own process fail with EINTR, or transfer fewer bytes than
// requested, as they may at any time; or fail with an error of the medium (EIO) or of a network file system (ESTALE).
// The linker (--wrap) puts these wrappers between the program and libc, and between the program and liburing, so the
// tested code is the released code, from the loop around pread to the queue of direct writes:
//
//   SystemCallFaults::Begin(SystemCallFaults::Kind::kInterrupt, k);   // interrupt the k-th call that can be
//   ... save, load, verify ...
//   const int64_t calls = SystemCallFaults::End();                    // how many calls could have been interrupted
//
// open, fallocate and fsync can be interrupted; pread, preadv2 and pwrite can be interrupted and cut short. An entry of
// io_uring is interrupted as by the kernel: with a completion of -EAGAIN (its descriptor is replaced by an empty or
// full pipe), or with -EINTR of the submission; it is cut short by halving its length. Any call of a file or directory
// can fail; an entry of io_uring then has a completion of -EIO. Nothing is synced, so that tests are fast. State is
// global: call Begin and End while one thread runs; the system calls may come from any thread.
//
// A network file system also shows changes of another host late, and lacks the flags of renameat2:
//
//   SystemCallFaults::Hide("step-00000008");    // made elsewhere: listings, opens and look-ups do not know it yet
//   SystemCallFaults::Forget("step-00000008");  // removed elsewhere: listed still, and ESTALE for who opens it
//   SystemCallFaults::Show();                   // this host has caught up
#ifndef FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_FAULTS_H_
#define FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_FAULTS_H_

#include <cerrno>
#include <cstdint>
#include <string>

namespace fsdp {

class SystemCallFaults {
 public:
  enum class Kind : uint8_t {
    kInterrupt,
    kCutShort,
    kFail,      // one call fails
    kFailFrom,  // that call and all later ones fail
  };

  // Every call that can have the fault has it once; its repetition succeeds.
  static constexpr int64_t kEvery = -1;

  // From now on, counts the calls that can have `kind`, and injects it into call `at`, counted from 1; 0: no injection.
  // `error`: the errno of calls that fail.
  static void Begin(Kind kind, int64_t at, int error = EIO);

  // Stops, and returns the number of counted calls.
  static int64_t End();

  // Until Show, for entries with this name in any directory; one name each. Call them while one thread runs.
  static void Hide(const std::string& name);
  static void Forget(const std::string& name);
  static void Show();

  // Faults since the program began.
  static int64_t injected();
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_FAULTS_H_
