// SPDX-License-Identifier: Apache-2.0
//
// ListUntrustedHdf5: the contents of an HDF5 file from an unknown origin. The library parses the file in a child
// process that can do little else and is killed when it takes too long, so a file that crashes the parser, makes it
// loop, or takes it over does no more harm than that. The child answers with a text, which is decoded and checked like
// any other input. Values are then read with pread, never through HDF5.
//
// The child is a fork of this process, created while no other thread is inside the library. It has only this file open
// and cannot open another for writing. Its limits: `memory_bytes` more than it started with; `cpu_seconds` of processor
// time and `timeout` of wall-clock time; on x86-64 and ARM64 only the system calls that are needed to read a file.
#ifndef FSDP_CHECKPOINT_FOREIGN_HDF5_CONFINED_HDF5_H_
#define FSDP_CHECKPOINT_FOREIGN_HDF5_CONFINED_HDF5_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_listing.h"

namespace fsdp {

struct ConfinedHdf5Options {
  int64_t memory_bytes = int64_t{1} << 30;
  int64_t output_bytes = int64_t{256} << 20;  // of the child's answer; a longer one is refused
  int cpu_seconds = 20;
  absl::Duration timeout = absl::Seconds(30);
  std::optional<Interval> part = {};  // bytes of the file that are the HDF5 file; offsets count from its start then
};

// Every dataset, with the guarantees of CheckHdf5Listing, and the links that are not followed; files that these links
// name are not opened. kNotFound when `path` does not exist; kInvalidArgument when it is not a regular file; kDataLoss,
// naming the file, when it is damaged, or when the child crashes or exceeds a limit; kUnavailable or kResourceExhausted
// when no child can be started and confined, such as without free descriptors.
absl::StatusOr<Hdf5Listing> ListUntrustedHdf5(const std::string& path, const ConfinedHdf5Options& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_HDF5_CONFINED_HDF5_H_
