// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint directory is recognised by its manifest, which a save writes last. A directory that has lost the
// manifest is recognised by the names of its other files: "a damaged checkpoint of ours" is a better answer than "no
// checkpoint". To recognise and to describe a checkpoint, no file but the manifest is opened, so that both work when
// rank files are missing or damaged.
#include "fsdp/checkpoint/native/checkpoint_driver.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/checkpoint_manifest.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/parity/parity_files.h"
#include "fsdp/checkpoint/native/read/native_source.h"
#include "fsdp/checkpoint/native/save/checkpoint_body.h"
#include "fsdp/checkpoint/native/save/checkpoint_proof.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/source/safetensors_metadata.h"
#include "fsdp/checkpoint/source/without_value.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(NativeTraits()) {}

  // A directory that has lost its manifest is recognised by its other files, so that opening it names the missing file
  // and verify reports it as damaged.
  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (!probe.is_directory) return false;
    FSDP_ASSIGN_OR_RETURN(const bool has_manifest, IsThere(JoinPath(probe.path, kManifestName)));
    if (has_manifest) return true;
    const absl::StatusOr<std::string> name = FindCheckpointFile(probe.path);
    // Another format may know its files by name, without a listing.
    if (absl::IsPermissionDenied(name.status())) return false;
    FSDP_RETURN_IF_ERROR(name.status());
    return !name->empty();
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    FSDP_RETURN_IF_ERROR(CheckManifestIsThere(path));
    return OpenNativeSource(path, options);
  }

  bool OwnsFileName(const std::string& name) const override { return IsCheckpointFileName(name); }

  absl::StatusOr<bool> IsCheckpointDirectory(const std::string& directory) const override {
    const absl::Status proof = CheckIsOurCheckpoint(PosixFileSystem(), directory);
    if (proof.ok() || absl::IsFailedPrecondition(proof)) return proof.ok();
    return proof;
  }
};

// The traits of a checkpoint, except for those that describe its directory.
FormatTraits RootTraits() {
  FormatTraits traits = NativeTraits();
  traits.headline = "a ROOT of checkpoints";
  traits.in_directory = "step-* directories";
  traits.is_root = true;
  return traits;
}

class RootDriver final : public FormatDriver {
 public:
  RootDriver() : FormatDriver(RootTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (!probe.is_directory) return false;
    std::vector<UnreadEntry> unread;
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> steps, ListCheckpoints(probe.path, &unread));
    for (const UnreadEntry& entry : unread) {
      // A directory of another user says nothing; an error of the disk may hide the only step.
      if (steps.empty() && !absl::IsPermissionDenied(entry.status)) return entry.status;
    }
    return !steps.empty();
  }

  absl::StatusOr<std::string> Resolve(const std::string& path, std::vector<std::string>* skipped) const override {
    return LatestCheckpoint(path, skipped);
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    std::vector<std::string> skipped;
    FSDP_ASSIGN_OR_RETURN(const std::string newest, Resolve(path, &skipped));
    for (std::string& sentence : skipped) {
      absl::StrAppend(&sentence, "; ", SplitPath(newest).name, " is read in its place");
    }
    return OpenNativeSource(newest, options, /*files=*/nullptr, std::move(skipped));
  }
};

class Writer final : public FormatWriter {
 public:
  explicit Writer(const Hdf5Target& target) : target_(target) {}

  bool MakesDirectory(const std::string& destination) const override {
    return !CheckpointDriver().HasSuffix(destination);
  }

  FormatMemory Memory(const FormatContents& contents, int io_threads) const override {
    const bool is_full = target_.type == StateDictType::kFull;
    const int files = is_full ? 1 : WorldSize(contents);
    return {.rank_files = is_full ? 0 : files, .parity_bytes = ParityMemory(files, target_.parity, io_threads)};
  }

  int64_t NameWork(const FormatContents& contents) const override {
    return CheckpointNameWork(target_.type, WorldSize(contents));
  }

  // Every value fits this format, if its name does. Safetensors metadata becomes an extra text, from which a later
  // conversion restores it.
  absl::StatusOr<std::vector<std::string>> Fit(FormatContents& contents) const override {
    if (target_.type == StateDictType::kFull && target_.world_size) {
      return absl::InvalidArgumentError(absl::StrCat("Hdf5Target::world_size=", *target_.world_size,
                                                     ", expected none: a full checkpoint has no rank files"));
    }
    FSDP_RETURN_IF_ERROR(CheckParityCount(target_.parity, target_.type));
    if (const int ranks = WorldSize(contents); ranks < 1 || ranks > 99999) {
      return absl::InvalidArgumentError(absl::StrCat("world size ", ranks, ", expected 1 to 99999"));
    }
    const StateDict& origin = contents.origin == nullptr ? contents.state : *contents.origin;
    FSDP_ASSIGN_OR_RETURN(const auto metadata, SafetensorsMetadata(contents.metadata, origin));
    KeepSafetensorsMetadata(metadata, contents.state);
    contents.state.type = target_.type;
    return LeaveOutUnstorableNames(contents.state);
  }

  absl::Status Write(const std::string& destination, const FormatContents& contents, const PayloadReader& read,
                     const FormatWriteOptions& options) const override {
    const CheckpointDirectoryOptions write = {.type = target_.type,
                                              .world_size = WorldSize(contents),
                                              .step = contents.step,
                                              .parity = target_.parity,
                                              .overwrite = options.overwrite,
                                              .max_memory = options.buffer_bytes,
                                              .io_threads = options.io_threads,
                                              .progress = options.progress,
                                              .count_names = options.count_names,
                                              .file_system = options.file_system};
    if (MakesDirectory(destination)) return WriteCheckpointDirectory(destination, contents.state, read, write);
    if (target_.type != StateDictType::kFull) {
      return absl::InvalidArgumentError(
          absl::StrCat(destination, " is one file, which holds a full state dict, and the type is ",
                       std::string(StateDictTypeName(target_.type)), ": choose a name without suffix for a directory"));
    }
    CheckpointDirectoryOptions file = write;
    file.step = contents.step;
    return WriteHdf5File(destination, contents.state, read, file);
  }

 private:
  int WorldSize(const FormatContents& contents) const { return target_.world_size.value_or(contents.world_size); }

  const Hdf5Target target_;
};

}  // namespace

const FormatDriver& CheckpointDriver() {
  // Never deleted, so that no static destructor runs while another thread still loads.
  static const auto* driver = new Driver;
  return *driver;
}

const FormatDriver& CheckpointRootDriver() {
  static const auto* driver = new RootDriver;
  return *driver;
}

std::unique_ptr<FormatWriter> WriterFor(const Hdf5Target& target) { return std::make_unique<Writer>(target); }

}  // namespace fsdp
