// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/torch/pt/torch_writer.h"

#include <memory>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/staged_path.h"
#include "fsdp/checkpoint/torch/state/torch_encoding.h"

namespace fsdp {

absl::Status WriteTorchFile(const std::string& path, const StateDict& contents, const PayloadReader& read,
                            const TorchWriteOptions& options) {
  FSDP_ASSIGN_OR_RETURN(EncodedTorchState encoded, EncodeTorchState(contents));
  std::vector<TorchStorageSource> storages;
  for (EncodedStorage& storage : encoded.storages) {
    if (auto* const literal = std::get_if<LiteralTensor>(&storage)) {
      storages.push_back({.elements = std::move(literal->bytes),
                          .interval = {0, literal->shape.numel()},
                          .element_size = SizeOf(literal->dtype)});
      continue;
    }
    const StateKey& key = std::get<StateKey>(storage);
    const ShardedTensor& tensor = *contents.FindTensor(key);
    storages.push_back({.elements = key, .interval = {0, tensor.shape.numel()}, .element_size = SizeOf(tensor.dtype)});
  }
  std::vector<TorchArchivePlan> archives;
  archives.emplace_back(0, std::move(encoded.pickle), std::move(storages));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateFile(*options.file_system, path, {.overwrite = options.overwrite}));
  FSDP_RETURN_IF_ERROR(WriteTorchArchives(staged->file(), archives, read, options));
  return staged->Commit();
}

}  // namespace fsdp
