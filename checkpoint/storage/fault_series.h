// SPDX-License-Identifier: Apache-2.0
//
// FaultSeries: the faults that a test of crashes goes through, one after the other: each is one kind of fault at one
// storage operation of what is tested. A test counts the operations of a run without fault, and then, for each fault of
// the series, begins where that run began:
//
//   for (const StorageFault& fault : FaultSeries(operations)) {
//     SCOPED_TRACE(fault.ToString());
//     ... prepare ...
//     FaultFileSystem files(PosixFileSystem(), graveyard);
//     fault.Arm(files);
//     const absl::Status status = Act(files);
//     fault.Strike(files);
//     ... old or new, never a mixture ...
//   }
//
// All kinds at all operations take minutes: that is what targets with EVERY_FAULT=1 in their environment do. Otherwise
// each operation gets two of the crashes and one of the errors, by turns. How many of each kind were injected is
// printed when the program ends.
#ifndef FSDP_CHECKPOINT_STORAGE_FAULT_SERIES_H_
#define FSDP_CHECKPOINT_STORAGE_FAULT_SERIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/storage/fault_file_system.h"

namespace fsdp {

struct StorageFault {
  enum class Kind : uint8_t {
    // Crashes: the process dies at the operation, which tears a write at a multiple of 512 bytes. Then nothing more is
    // lost, or of what was not synced names and contents, names, contents, or every other sector of 512 bytes.
    kKill,
    kLoseNamesAndData,
    kLoseNames,
    kLoseData,
    kLoseSectors,
    // Errors: of this operation alone, or from it on.
    kIoError,   // EIO, once
    kNoSpace,   // ENOSPC, once
    kDiskFull,  // ENOSPC of whatever needs space, from now on
    kReadOnly,  // EROFS of every change from now on, as after an error that the file system does not forgive
  };

  Kind kind = Kind::kKill;
  int64_t operation = 1;

  bool is_crash() const { return kind <= Kind::kLoseSectors; }

  // False when nothing can be cleaned up behind the fault.
  bool can_clean_up() const { return !is_crash() && kind != Kind::kReadOnly; }

  void Arm(FaultFileSystem& files) const;

  // Once the action has come back: what is lost is lost.
  void Strike(FaultFileSystem& files) const;

  // "EIO at operation 7".
  std::string ToString() const;
};

// For an action of `operations` operations. Crashes come also behind the last one: everything was done and reported.
std::vector<StorageFault> FaultSeries(int64_t operations);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_FAULT_SERIES_H_
