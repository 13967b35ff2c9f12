// SPDX-License-Identifier: Apache-2.0
//
// torch.save has written zip archives since PyTorch 1.6 and bare pickles before. A zip archive starts with "PK\3\4",
// and belongs to NumPy if its first entry is a .npy file (npz_driver.cc), to Keras if it is metadata.json; a pickle of
// torch starts with 0x80 and its protocol, 2 to 5. A safetensors file can start with the same two bytes, since its
// first eight are a length, but then its byte 8 opens JSON: see safetensors_driver.cc.
#include "fsdp/checkpoint/foreign/torch/pt/torch_driver.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_header.h"
#include "fsdp/checkpoint/foreign/torch/pt/joined_files.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_source.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"
#include "fsdp/checkpoint/foreign/torch/pt/wheel_index.h"
#include "fsdp/checkpoint/foreign/torch/state/value_notes.h"
#include "fsdp/checkpoint/foreign/zip/zip_format.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "fsdp/checkpoint/source/safetensors_metadata.h"

namespace fsdp {
namespace {

// Archives of NumPy and of Keras begin with other entries.
bool IsTorchZip(std::string_view head) {
  return !FirstZipEntryEndsWith(head, ".npy") && !FirstZipEntryEndsWith(head, "metadata.json");
}

// True for tensors of a model and safetensors' metadata, without anything of a training run.
bool IsModelWithMetadata(const StateDict& state) {
  const StateKey metadata = SafetensorsMetadataKey();
  return std::all_of(state.entries().begin(), state.entries().end(), [&](const StateDict::Entry& entry) {
    const StateKey& key = entry.first;
    return key.section == StateKey::Section::kModel || key == metadata || NameOfModelValue(key);
  });
}

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(TorchTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (probe.is_directory) return IsTorchDirectory(probe.path);
    if (absl::StartsWith(probe.head, "PK\x03\x04")) return IsTorchZip(probe.head);
    return probe.head.size() > 1 && probe.head[0] == '\x80' && probe.head[1] <= 5 && !IsSafetensorsHead(probe.head);
  }

  // As for safetensors. Files that differ only in a number, such as epoch_0.pt and epoch_1.pt, are not enough: other
  // programs give such names to unrelated files.
  absl::StatusOr<bool> IsCheckpointDirectory(const std::string& directory) const override {
    FSDP_ASSIGN_OR_RETURN(const bool has_index, HasEntry(directory, kTorchIndexName));
    if (has_index) return true;
    FSDP_ASSIGN_OR_RETURN(const bool has_model, HasEntry(directory, kTorchModelName));
    return has_model ? HasEntry(directory, kHuggingFaceConfigName) : false;
  }

  bool ReadsFileName(const std::string& name) const override {
    return HasSuffix(name) || name == kTorchIndexName || name == kHuggingFaceConfigName;
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenTorchSource(path, options);
  }
};

class Writer final : public FormatWriter {
 public:
  bool MakesDirectory(const std::string&) const override { return false; }

  absl::StatusOr<std::vector<std::string>> Fit(FormatContents& contents) const override { return FitTorch(contents); }

  absl::Status Write(const std::string& destination, const FormatContents& contents, const PayloadReader& read,
                     const FormatWriteOptions& options) const override {
    return WriteTorchFile(destination, contents.state, read, TorchOptionsOf(options));
  }
};

}  // namespace

const FormatDriver& TorchDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

std::unique_ptr<FormatWriter> WriterFor(const TorchTarget&) { return std::make_unique<Writer>(); }

TorchWriteOptions TorchOptionsOf(const FormatWriteOptions& options) {
  return {.overwrite = options.overwrite,
          .file_system = options.file_system,
          .buffer_bytes = options.buffer_bytes,
          .io_threads = options.io_threads,
          .progress = options.progress,
          .count_names = options.count_names};
}

std::vector<std::string> FitTorch(FormatContents& contents) {
  std::vector<std::string> notes = TakeWheelIndex(contents.state);
  StateDict kept;
  KeepSafetensorsMetadata(contents.metadata, kept);
  // Our own format keeps it as a text, with which a model would be no plain state dict.
  const bool was_kept = IsModelWithMetadata(contents.state) && TakeSafetensorsMetadata(contents.state);
  for (std::string& note : NotesOnBranchKeys(contents.state)) notes.push_back(std::move(note));
  for (std::string& note : NotesForTorchLoad(contents.state)) notes.push_back(std::move(note));
  if (was_kept || !kept.empty()) notes.emplace_back("__metadata__ is left out: PyTorch's formats have no place for it");
  return notes;
}

}  // namespace fsdp
