// SPDX-License-Identifier: Apache-2.0
//
// Trainers put an exported model (pytorch_model.bin) next to `latest`: such a ROOT is that model's, and the TAG inside
// is DeepSpeed's.
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_driver.h"

#include <memory>
#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_source.h"

namespace fsdp {
namespace {

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(DeepSpeedTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (!probe.is_directory) return false;
    for (const char* const model : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
      if (HasEntry(probe.path, model)) return false;
    }
    return IsDeepSpeedDirectory(probe.path);
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenDeepSpeedSource(path, options);
  }

  absl::StatusOr<std::string> Resolve(const std::string& path) const override {
    std::string note;
    return DeepSpeedTag(path, &note);
  }

  // Not a ROOT, in which trainers keep other files.
  bool IsCheckpointDirectory(const std::string& directory) const override { return IsInsideDeepSpeedTag(directory); }

  bool ReadsFileName(const std::string& name) const override { return IsDeepSpeedFile(name); }
};

}  // namespace

const FormatDriver& DeepSpeedDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

}  // namespace fsdp
