// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/megatron_source.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/megatron/dist_source.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_paths.h"
#include "fsdp/checkpoint/foreign/megatron/rank_source.h"

namespace fsdp {

absl::StatusOr<std::string> ResolveMegatron(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const MegatronForm form, MegatronFormOf(path));
  return form == MegatronForm::kRoot ? MegatronLatest(path) : path;
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenMegatronSource(const std::string& path,
                                                                 const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::string directory, ResolveMegatron(path));
  FSDP_ASSIGN_OR_RETURN(const MegatronForm form, MegatronFormOf(directory));
  if (form == MegatronForm::kDist) return OpenMegatronDist(path, directory, options);
  if (form == MegatronForm::kRanks) return OpenMegatronRanks(path, directory, options);
  return absl::DataLossError(
      absl::StrCat(directory,
                   " has neither metadata.json and common.pt nor mp_rank_* directories: its save or copy did "
                   "not finish; give the directory of another iteration"));
}

}  // namespace fsdp
