// SPDX-License-Identifier: Apache-2.0
//
// The parity files of a checkpoint: parity-XXXXX-of-XXXXX.bin, K of them, as long as the longest rank file. Byte i of
// each is what ParityCode makes of bytes i of all rank files, those that are shorter counting as zero behind their end.
// Any K files of data and parity together can be lost. Several processes share the work, block by block.
#ifndef FSDP_CHECKPOINT_PARITY_PARITY_FILES_H_
#define FSDP_CHECKPOINT_PARITY_PARITY_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct ParityPlan {
  struct DataFile {
    std::string name;
    int64_t nbytes = 0;
  };
  std::vector<DataFile> data;       // sorted by name
  std::vector<std::string> parity;  // names

  int64_t nbytes() const;  // of each parity file
};

// kInvalidArgument when there are more files than the code can take.
absl::StatusOr<ParityPlan> PlanParity(std::vector<ParityPlan::DataFile> data, int parity);

// Makes the parity files, empty, in `directory`.
absl::Status CreateParityFiles(FileSystem& files, const std::string& directory, const ParityPlan& plan);

// Blocks of kBlockBytes of every parity file that share `share` of `shares` writes.
Interval ParityShare(const ParityPlan& plan, int shares, int share);

// Writes and fsyncs `blocks` of all parity files; returns their digests, by file, then block.
absl::StatusOr<std::vector<Digest>> WriteParityBlocks(FileSystem& files, const std::string& directory,
                                                      const ParityPlan& plan, const Interval& blocks, ThreadPool& pool);

// Memory that WriteParityBlocks takes, on `threads` threads, for so many files; from above.
int64_t ParityMemory(int64_t data, int64_t parity, int threads);

// Adds the parity files to `manifest`, which has the data files; `digests` as WriteParityBlocks gives them, share by
// share.
void AddParity(const ParityPlan& plan, const std::vector<std::vector<Digest>>& digests, Manifest& manifest);

// What is to be made, and what is not to be read; indices into a plan: data first, then parity.
struct ParityLoss {
  std::vector<int> lost;
  std::vector<int> unused;  // neither made nor read
};

// Makes what is lost from the others and puts it at `out`, paths of new files, which are synced. Nothing is verified:
// whoever knows digests compares them.
absl::Status RebuildFromParity(FileSystem& files, const std::string& directory, const ParityPlan& plan,
                               const ParityLoss& loss, const std::vector<std::string>& out, ThreadPool& pool);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_PARITY_PARITY_FILES_H_
