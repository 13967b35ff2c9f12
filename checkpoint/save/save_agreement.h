// SPDX-License-Identifier: Apache-2.0
//
// What ranks tell each other during a save, as small blobs, and what must be equal among them. Pure.
#ifndef FSDP_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_
#define FSDP_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/record.h"
#include "fsdp/checkpoint/parity/parity_files.h"
#include "fsdp/checkpoint/save/save_options.h"
#include "fsdp/checkpoint/save/save_plan.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// What one rank is about to save.
std::string EncodeFacts(int64_t step, StateDictType type, const SaveOptions& options, const SavePlan& plan);

// The ranks that write, in order, from all ranks' facts; every rank comes to the same result. kFailedPrecondition,
// naming two ranks, when they disagree about step, kind or options, when a text is not rank 0's, or when a rank
// holds copies of tensors that nobody writes. For kFull only rank 0's plan counts.
absl::StatusOr<std::vector<int>> ChooseWriters(const std::vector<std::string>& facts);

// Where rank 0 made the directory, and the save's id.
struct SharedDirectory {
  std::string name;
  std::string save_id;
};
std::string EncodeSharedDirectory(const SharedDirectory& shared);
absl::StatusOr<SharedDirectory> DecodeSharedDirectory(std::string_view blob);

// Where the tensors of a file that all ranks write begin.
std::string EncodeOffsets(const std::vector<int64_t>& offsets);
absl::StatusOr<std::vector<int64_t>> DecodeOffsets(std::string_view blob);

// What rank 0 made for parity, and the digests of what a writer wrote of it.
std::string EncodeParityPlan(const ParityPlan& plan);
absl::StatusOr<ParityPlan> DecodeParityPlan(std::string_view blob);
std::string EncodeDigests(const std::vector<Digest>& digests);
absl::StatusOr<std::vector<Digest>> DecodeDigests(std::string_view blob);

// The file that a writer made.
std::string EncodeWrittenFile(const WrittenFile& file);
absl::StatusOr<WrittenFile> DecodeWrittenFile(std::string_view blob);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_
