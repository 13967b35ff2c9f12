// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_driver.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_source.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_writer.h"
#include "fsdp/checkpoint/foreign/torch/dcp/megatron_sign.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_driver.h"
#include "fsdp/checkpoint/foreign/torch/state/value_notes.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(DcpTraits()) {}

  // Megatron-Core writes DCP's files, with names that only its driver knows.
  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (!probe.is_directory) return false;
    FSDP_ASSIGN_OR_RETURN(const bool is_dcp, IsDcpDirectory(probe.path));
    if (!is_dcp) return false;
    FSDP_ASSIGN_OR_RETURN(const bool is_megatron, IsMegatronDist(probe.path));
    return !is_megatron;
  }

  // Other programs have directories named .metadata.
  absl::StatusOr<bool> IsCheckpointDirectory(const std::string& directory) const override {
    FSDP_ASSIGN_OR_RETURN(const auto type, TypeOfTarget(JoinPath(directory, kDcpMetadataName)));
    return type == std::filesystem::file_type::regular;
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenDcpSource(path, options);
  }

  // Only names that our writer and torch's own give: `force` may delete a directory of such files.
  bool OwnsFileName(const std::string& name) const override {
    return name == kDcpMetadataName || (absl::StartsWith(name, "__") && absl::EndsWith(name, ".distcp"));
  }

  // Wider than OwnsFileName, because .metadata may name any file.
  bool ReadsFileName(const std::string& name) const override {
    return name == kDcpMetadataName || absl::EndsWith(name, ".distcp");
  }
};

class Writer final : public FormatWriter {
 public:
  explicit Writer(const DcpTarget& target) : target_(target) {}

  bool MakesDirectory(const std::string&) const override { return true; }

  // Every rank's archives are laid out before the first file is written, so memory grows with the ranks.
  FormatMemory Memory(const FormatContents& contents, int) const override {
    return {.rank_files = WorldSize(contents)};
  }

  // Each tensor is an archive, which is laid out before and described in .metadata afterwards.
  int64_t NameWork(const FormatContents&) const override { return kDcpNameWork; }

  absl::StatusOr<std::vector<std::string>> Fit(FormatContents& contents) const override {
    if (const int ranks = WorldSize(contents); ranks < 1 || ranks > 99999) {
      return absl::InvalidArgumentError(absl::StrCat("world size ", ranks, ", expected 1 to 99999"));
    }
    std::vector<std::string> notes = FitTorch(contents);
    for (std::string& note : NotesForDcp(contents.state)) notes.push_back(std::move(note));
    return notes;
  }

  absl::Status Write(const std::string& destination, const FormatContents& contents, const PayloadReader& read,
                     const FormatWriteOptions& options) const override {
    return WriteDcpDirectory(destination, contents.state, WorldSize(contents), read, TorchOptionsOf(options));
  }

 private:
  // The same value in Fit, Memory and Write: the layout and its memory estimate must agree.
  int WorldSize(const FormatContents& contents) const { return target_.world_size.value_or(contents.world_size); }

  const DcpTarget target_;
};

}  // namespace

const FormatDriver& DcpDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

std::unique_ptr<FormatWriter> WriterFor(const DcpTarget& target) { return std::make_unique<Writer>(target); }

}  // namespace fsdp
