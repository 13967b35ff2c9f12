// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/load_together.h"

#include <memory>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/collectives/group/same_on_ranks.h"

namespace fsdp {
namespace {

struct Opened {
  std::unique_ptr<TensorSource> source;
  std::string identity;
};

absl::StatusOr<Opened> Open(const std::string& path, const TensorSourceOptions& options, FindDriver find) {
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, find(path));
  absl::StatusOr<std::unique_ptr<TensorSource>> source = driver->OpenChecked(path, options);
  if (!source.ok()) return NameLoadOptions(source.status());
  FSDP_ASSIGN_OR_RETURN(std::string identity, (*source)->Identity());
  return Opened{*std::move(source), std::move(identity)};
}

// The name in `path` of the checkpoint that it denotes; "" for `path` itself.
absl::StatusOr<std::string> NameInRoot(const std::string& path, FindDriver find, std::vector<std::string>* skipped) {
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, find(path));
  FSDP_ASSIGN_OR_RETURN(const std::string resolved, driver->Resolve(path, skipped));
  return resolved == path ? "" : SplitPath(resolved).name;
}

}  // namespace

// The name is sent and not the path: hosts may mount one directory at different places.
absl::StatusOr<std::string> ResolveTogether(const std::string& path, ProcessGroup& group, FindDriver find,
                                            std::vector<std::string>* skipped) {
  absl::StatusOr<std::string> name = "";
  if (group.rank() == 0) name = NameInRoot(path, find, skipped);
  FSDP_RETURN_IF_ERROR(AllReduceStatus(group, name.status()));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, group.AllGatherObject(*name));
  return names[0].empty() ? path : JoinPath(path, names[0]);
}

absl::Status LoadTogether(const std::string& path, StateDict& wanted, ProcessGroup& group, const LoadOptions& options,
                          FindDriver find) {
  FSDP_RETURN_IF_ERROR(AllReduceStatus(group, CheckLoadMemory(wanted, options)));
  FSDP_ASSIGN_OR_RETURN(const std::string resolved, ResolveTogether(path, group, find));
  const absl::StatusOr<Opened> opened = Open(resolved, SourceOptionsFor(wanted, options), find);
  FSDP_RETURN_IF_ERROR(AllReduceStatus(group, opened.status()));
  FSDP_RETURN_IF_ERROR(CheckSameOnRanks(group, {{"the checkpoint to load", opened->identity, resolved}},
                                        "give every host a copy of the same checkpoint"));
  return AllReduceStatus(group, LoadFrom(*opened->source, resolved, wanted, options));
}

}  // namespace fsdp
