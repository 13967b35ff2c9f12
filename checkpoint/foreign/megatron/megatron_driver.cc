// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/megatron_driver.h"

#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_contents.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_paths.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_source.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_traits.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_writer.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_driver.h"
#include "fsdp/checkpoint/storage/path.h"

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

  // Also a rank's directory in one.
  absl::StatusOr<bool> IsCheckpointDirectory(const std::string& directory) const override {
    const absl::StatusOr<MegatronForm> form = MegatronFormOf(directory);
    // There is no such directory yet, or it is a file.
    if (absl::IsNotFound(form.status()) || absl::IsFailedPrecondition(form.status())) return false;
    FSDP_RETURN_IF_ERROR(form.status());
    if (*form != MegatronForm::kNone || !MegatronRankNumbers(SplitPath(directory).name)) {
      return *form != MegatronForm::kNone;
    }
    return HasEntry(directory, kMegatronRankFileName);
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenMegatronSource(path, options);
  }

  absl::StatusOr<std::string> Resolve(const std::string& path, std::vector<std::string>*) const override {
    return ResolveMegatron(path);
  }

  // Of a ROOT and of an iteration in it, whose other files have DCP's names.
  bool OwnsFileName(const std::string& name) const override {
    return name == kMegatronLatestName || name == kMegatronRelease || name == kMegatronMetadataName ||
           name == kMegatronCommonName || MegatronIteration(name).has_value();
  }
};

class Writer final : public FormatWriter {
 public:
  bool MakesDirectory(const std::string&) const override { return true; }

  // Every archive is laid out before the first is written.
  FormatMemory Memory(const FormatContents&, int) const override { return {.rank_files = 1}; }

  absl::StatusOr<std::vector<std::string>> Fit(FormatContents& contents) const override {
    return FitMegatron(contents);
  }

  absl::Status Write(const std::string& destination, const FormatContents& contents, const PayloadReader& read,
                     const FormatWriteOptions& options) const override {
    return WriteMegatron(destination, contents.state, contents.step, read, TorchOptionsOf(options));
  }
};

}  // namespace

const FormatDriver& MegatronDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

std::unique_ptr<FormatWriter> WriterFor(const MegatronTarget&) { return std::make_unique<Writer>(); }

}  // namespace fsdp
