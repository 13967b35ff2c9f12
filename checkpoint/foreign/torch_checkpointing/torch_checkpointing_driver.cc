// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch_checkpointing/torch_checkpointing_driver.h"

#include <memory>
#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_plan.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/torch_checkpointing_source.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(TorchCheckpointingTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (!probe.is_directory) return false;
    return IsItemDirectory(probe.path);
  }

  // Also a directory in one, in which metadata.pkl places files of ranks.
  absl::StatusOr<bool> IsCheckpointDirectory(const std::string& directory) const override {
    FSDP_ASSIGN_OR_RETURN(const bool is_listed, IsListed(directory));
    return is_listed ? true : IsListed(SplitPath(directory).directory);
  }

  bool ReadsFileName(const std::string& name) const override { return name == kItemsMetadataName; }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenTorchCheckpointingSource(path, options);
  }

 private:
  static absl::StatusOr<bool> IsListed(const std::string& directory) {
    FSDP_ASSIGN_OR_RETURN(const bool has_metadata, HasEntry(directory, kItemsMetadataName));
    return has_metadata ? IsItemDirectory(directory) : false;
  }
};

}  // namespace

const FormatDriver& TorchCheckpointingDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

}  // namespace fsdp
