// SPDX-License-Identifier: Apache-2.0
//
// RankArguments: what the "args" in a rank's file say of the number of ranks: Megatron-LM saves its command line, an
// argparse.Namespace, of which only these three numbers are read. They are the only record of ranks whose directories
// are all missing.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_RANK_ARGUMENTS_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_RANK_ARGUMENTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace fsdp {

struct RankArguments {
  std::optional<int64_t> tensor;  // tensor_model_parallel_size
  std::optional<int64_t> pipeline;
  std::optional<int64_t> expert;
};

// Of the file `path`. Nothing is known if the file has no args, or cannot be read: who reads its model gets the error.
RankArguments ReadRankArguments(const std::string& path);

// kDataLoss if there are directories of fewer ranks than `arguments` say.
absl::Status CheckHasAllRanks(const RankArguments& arguments, int tensor, int pipeline, int expert);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_RANK_ARGUMENTS_H_
