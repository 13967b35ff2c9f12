// SPDX-License-Identifier: Apache-2.0
//
// The names of a Megatron-Core run's directories:
//
//   ROOT/latest_checkpointed_iteration.txt      "7", or "release"
//   ROOT/iter_0000007/metadata.json             {"sharded_backend": "torch_dist", ...}: with .metadata, common.pt
//   ROOT/iter_0000007/mp_rank_TT[_PPP][_EEE]/   model_optim_rng.pt of each tensor, pipeline and expert parallel rank
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_PATHS_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_PATHS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/dcp/megatron_sign.h"

namespace fsdp {

inline constexpr char kMegatronLatestName[] = "latest_checkpointed_iteration.txt";
inline constexpr char kMegatronRankFileName[] = "model_optim_rng.pt";
inline constexpr char kMegatronRelease[] = "release";

// "iter_0000007" for 7, and the inverse: nullopt for any other name.
std::string MegatronIterationName(int64_t iteration);
std::optional<int64_t> MegatronIteration(std::string_view name);

// The numbers of "mp_rank_01_000": 1, 0; nullopt for any other name. One to three numbers of at most six digits.
std::optional<std::vector<int>> MegatronRankNumbers(std::string_view name);

// The names in `directory` for which MegatronRankNumbers has numbers, sorted by them.
absl::StatusOr<std::vector<std::string>> MegatronRankDirectories(const std::string& directory);

// The form of a directory, from the names in it and from metadata.json.
enum class MegatronForm : uint8_t { kNone, kRoot, kDist, kRanks };
absl::StatusOr<MegatronForm> MegatronFormOf(const std::string& directory);

// The directory that the latest file of `root` names. kDataLoss if its text is not an iteration, or nothing has that
// name.
absl::StatusOr<std::string> MegatronLatest(const std::string& root);

// OK if the metadata.json of `directory` says torch_dist in a version that is read; kInvalidArgument names another
// backend, kDataLoss damage.
absl::Status CheckMegatronMetadata(const std::string& directory);

// kDataLoss if `directory` is named after another iteration than `iteration`, which its files record. The step of the
// checkpoint otherwise: -1 for a release, and if no iteration is recorded.
absl::StatusOr<int64_t> MegatronStep(const std::string& directory, std::optional<int64_t> iteration);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_PATHS_H_
