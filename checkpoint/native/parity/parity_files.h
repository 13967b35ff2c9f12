// SPDX-License-Identifier: Apache-2.0
//
// The parity files of a checkpoint: parity-XXXXX-of-XXXXX.bin, K of them, as long as the longest rank file. Byte i of
// each is computed by ParityCode from bytes i of all rank files; a shorter file counts as zeros after its end. Any K
// files of rank files and parity files together can be lost and rebuilt. Several processes can share the work of
// writing them: each takes a range of blocks of every parity file.
#ifndef FSDP_CHECKPOINT_NATIVE_PARITY_PARITY_FILES_H_
#define FSDP_CHECKPOINT_NATIVE_PARITY_PARITY_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/manifest.h"
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

// Makes the parity files in `directory`, with their final size but without contents, and fsyncs them.
absl::Status CreateParityFiles(FileSystem& files, const std::string& directory, const ParityPlan& plan);

// The blocks (indices, kBlockBytes each) of every parity file that writer `share` of `shares` writes.
Interval ParityShare(const ParityPlan& plan, int shares, int share);

// Writes and fsyncs `blocks` of all parity files; returns their digests, by file, then block.
absl::StatusOr<std::vector<Digest>> WriteParityBlocks(FileSystem& files, const std::string& directory,
                                                      const ParityPlan& plan, const Interval& blocks, ThreadPool& pool);

// An upper bound of the memory, in bytes, that WriteParityBlocks takes on `threads` threads for `data` rank files and
// `parity` parity files.
int64_t ParityMemory(int64_t data, int64_t parity, int threads);

// Adds the parity files to `manifest`, which has the data files. `digests`: the results of WriteParityBlocks, by share.
void AddParity(const ParityPlan& plan, const std::vector<std::vector<Digest>>& digests, Manifest& manifest);

// Files of a plan by index: data first, then parity.
struct ParityLoss {
  std::vector<int> lost;    // to be rebuilt
  std::vector<int> unused;  // neither rebuilt nor read
};

// Rebuilds the files `loss.lost` as new files at the paths `out`, in the same order, and fsyncs them. The result is not
// verified; callers compare it with their digests. kDataLoss when too few files remain.
absl::Status RebuildFromParity(FileSystem& files, const std::string& directory, const ParityPlan& plan,
                               const ParityLoss& loss, const std::vector<std::string>& out, ThreadPool& pool);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_PARITY_PARITY_FILES_H_
