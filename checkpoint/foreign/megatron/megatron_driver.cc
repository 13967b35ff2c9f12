// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/megatron_driver.h"

#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_paths.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_source.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_traits.h"

namespace fsdp {
namespace {

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(MegatronTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (!probe.is_directory) return false;
    FSDP_ASSIGN_OR_RETURN(const MegatronForm form, MegatronFormOf(probe.path));
    return form != MegatronForm::kNone;
  }

  bool IsCheckpointDirectory(const std::string& directory) const override {
    return MegatronFormOf(directory).value_or(MegatronForm::kNone) != MegatronForm::kNone;
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenMegatronSource(path, options);
  }

  absl::StatusOr<std::string> Resolve(const std::string& path) const override { return ResolveMegatron(path); }
};

}  // namespace

const FormatDriver& MegatronDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

}  // namespace fsdp
