// SPDX-License-Identifier: Apache-2.0
//
// The messages that ranks exchange during a save, as small JSON blobs for SaveGroup::Gather, and the rules for the
// values that must be equal on all ranks. Ranks of one job run one release of this program, so decoders check less than
// those for files. Pure.
#ifndef FSDP_CHECKPOINT_NATIVE_SAVE_SAVE_AGREEMENT_H_
#define FSDP_CHECKPOINT_NATIVE_SAVE_SAVE_AGREEMENT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/format/record.h"
#include "fsdp/checkpoint/native/parity/parity_files.h"
#include "fsdp/checkpoint/native/save/save_options.h"
#include "fsdp/checkpoint/native/save/save_plan.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The facts about a rank's part of the save that ChooseWriters compares: step, kinds, options, attributes, and digests
// of names and texts.
std::string EncodeFacts(int64_t step, StateDictType type, const SaveOptions& options, const SavePlan& plan);

// The ranks that write, ascending. Computed from the facts of all ranks, by rank, so every rank gets the same result.
// kFailedPrecondition, naming two ranks, when they disagree about step, kind or options, when a text or the attributes
// differ from rank 0's, or when a rank holds copies of tensors that no rank writes. For kFull only rank 0's plan
// counts.
absl::StatusOr<std::vector<int>> ChooseWriters(const std::vector<std::string>& facts);

// The name of the hidden directory that rank 0 made, and the save's id. Only rank 0's blob is used.
struct SharedDirectory {
  std::string name;
  std::string save_id;
};
std::string EncodeSharedDirectory(const SharedDirectory& shared);
absl::StatusOr<SharedDirectory> DecodeSharedDirectory(std::string_view blob);

// The byte offset of each tensor of a shared file, in the order of the tree.
std::string EncodeOffsets(const std::vector<int64_t>& offsets);
absl::StatusOr<std::vector<int64_t>> DecodeOffsets(std::string_view blob);

// The parity files that rank 0 made, and the digests of the blocks that one writer filled.
std::string EncodeParityPlan(const ParityPlan& plan);
absl::StatusOr<ParityPlan> DecodeParityPlan(std::string_view blob);
std::string EncodeDigests(const std::vector<Digest>& digests);
absl::StatusOr<std::vector<Digest>> DecodeDigests(std::string_view blob);

// The rank file that a writer made: enough to find it and to trust its record.
std::string EncodeWrittenFile(const WrittenFile& file);
absl::StatusOr<WrittenFile> DecodeWrittenFile(std::string_view blob);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_SAVE_AGREEMENT_H_
