// SPDX-License-Identifier: Apache-2.0
//
// ListUntrustedHdf5: the datasets of an HDF5 file that nobody vouches for. The library parses it in a child process
// that can do little else, and that is killed when it takes too long: one that crashes, loops, or is taken over by the
// file gets no further. What it says is a text, decoded and checked like any other input, and values are then read with
// pread, never through HDF5.
//
// The child is a fork of this process, made while no other thread of it is inside the library. It has: no files but the
// one, and cannot open another; no writes; at most `memory_bytes` beside what it was born with; `cpu_seconds` of
// processor time and `timeout` of anybody's; on x86-64 and ARM64 only the system calls that reading a file takes.
#ifndef FSDP_CHECKPOINT_HDF5_CONFINED_HDF5_H_
#define FSDP_CHECKPOINT_HDF5_CONFINED_HDF5_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/checkpoint/hdf5/hdf5_listing.h"

namespace fsdp {

struct ConfinedHdf5Options {
  int64_t memory_bytes = int64_t{1} << 30;
  int64_t output_bytes = int64_t{256} << 20;  // of names and places that are believed to be a checkpoint's
  int cpu_seconds = 20;
  absl::Duration timeout = absl::Seconds(30);
};

// Every dataset, with what CheckHdf5Listing guarantees. kNotFound when there is no such file; kInvalidArgument when it
// is not a regular file; kDataLoss, naming the file, when it is damaged, or kills or stops whoever parses it.
absl::StatusOr<std::vector<Hdf5Dataset>> ListUntrustedHdf5(const std::string& path,
                                                           const ConfinedHdf5Options& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_HDF5_CONFINED_HDF5_H_
