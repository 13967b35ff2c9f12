// SPDX-License-Identifier: Apache-2.0
//
// FaultSeries: the faults that a crash test injects, one per run: each is one kind of fault at one storage operation of
// the tested action. A test counts the operations of a run without faults, and then repeats the run for each fault of
// the series, always from the same state:
//
//   for (const StorageFault& fault : FaultSeries(operations)) {
//     SCOPED_TRACE(fault.ToString());
//     ... prepare ...
//     FaultFileSystem files(PosixFileSystem(), graveyard);
//     fault.Arm(files);
//     const absl::Status status = Act(files);
//     fault.Strike(files);
//     ... the old checkpoint or the new one, never a mixture ...
//   }
//
// All kinds at all operations take minutes, so only targets with EVERY_FAULT=1 in their environment run them. Otherwise
// each operation gets two of the crashes and one of the errors, in rotation. At its end the program prints the number
// of injected faults of each kind.
#ifndef FSDP_CHECKPOINT_STORAGE_FAULT_SERIES_H_
#define FSDP_CHECKPOINT_STORAGE_FAULT_SERIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/storage/fault_file_system.h"

namespace fsdp {

struct StorageFault {
  enum class Kind : uint8_t {
    // Crashes: the process dies at the operation, which tears a write at a multiple of 512 bytes. Then LosePower
    // reverts nothing, or unsynced names and contents, names, contents, or every other sector of 512 bytes.
    kKill,
    kLoseNamesAndData,
    kLoseNames,
    kLoseData,
    kLoseSectors,
    // Errors: only at this operation, or from it on.
    kIoError,   // EIO, once
    kNoSpace,   // ENOSPC, once
    kDiskFull,  // ENOSPC of every operation that needs space, from now on
    kReadOnly,  // EROFS of every change from now on, as when a file system remounts itself after an error
  };

  Kind kind = Kind::kKill;
  int64_t operation = 1;

  bool is_crash() const { return kind <= Kind::kLoseSectors; }

  // False if the tested code cannot clean up after the fault.
  bool can_clean_up() const { return !is_crash() && kind != Kind::kReadOnly; }

  // Call before the tested action.
  void Arm(FaultFileSystem& files) const;

  // Call after it: reverts the data that the crash loses; does nothing for an error.
  void Strike(FaultFileSystem& files) const;

  // "EIO at operation 7".
  std::string ToString() const;
};

// For an action of `operations` operations. Includes a crash after the last one, when everything is complete and
// reported: nothing may be lost then.
std::vector<StorageFault> FaultSeries(int64_t operations);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_FAULT_SERIES_H_
