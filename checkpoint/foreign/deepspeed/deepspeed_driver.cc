// SPDX-License-Identifier: Apache-2.0
//
// Trainers put an exported model (pytorch_model.bin) next to `latest`: such a ROOT is that model's, and the TAG inside
// is DeepSpeed's.
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_driver.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_source.h"
#include "fsdp/checkpoint/foreign/deepspeed/universal_writer.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_driver.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(DeepSpeedTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (!probe.is_directory) return false;
    for (const char* const model : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
      FSDP_ASSIGN_OR_RETURN(const bool is_there, IsThere(JoinPath(probe.path, model)));
      if (is_there) return false;
    }
    return IsDeepSpeedDirectory(probe.path);
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenDeepSpeedSource(path, options);
  }

  absl::StatusOr<std::string> Resolve(const std::string& path, std::vector<std::string>*) const override {
    std::string note;
    return DeepSpeedTag(path, &note);
  }

  // Not a ROOT, in which trainers keep other files.
  absl::StatusOr<bool> IsCheckpointDirectory(const std::string& directory) const override {
    return IsInsideDeepSpeedTag(directory);
  }

  // Of a ROOT.
  bool OwnsFileName(const std::string& name) const override {
    return name == kDeepSpeedLatestUniversal || IsUniversalTagName(name);
  }

  bool ReadsFileName(const std::string& name) const override { return IsDeepSpeedFile(name) || OwnsFileName(name); }
};

class Writer final : public FormatWriter {
 public:
  bool MakesDirectory(const std::string&) const override { return true; }

  absl::StatusOr<std::vector<std::string>> Fit(FormatContents& contents) const override {
    std::vector<std::string> notes = FitTorch(contents);
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> of_universal, CheckUniversal(contents.state));
    notes.insert(notes.end(), of_universal.begin(), of_universal.end());
    if (contents.step < 0) notes.emplace_back("the step is not known: written as global_steps 0");
    if (!contents.state.contains(StateKey::Extra("lr_scheduler"))) {
      notes.emplace_back(
          "there is no state of an lr_scheduler: with one, call load_checkpoint(..., load_lr_scheduler_states=False)");
    }
    return notes;
  }

  absl::Status Write(const std::string& destination, const FormatContents& contents, const PayloadReader& read,
                     const FormatWriteOptions& options) const override {
    return WriteUniversal(destination, contents.state, {contents.step, contents.world_size}, read,
                          TorchOptionsOf(options));
  }
};

}  // namespace

const FormatDriver& DeepSpeedDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

std::unique_ptr<FormatWriter> WriterFor(const DeepSpeedTarget&) { return std::make_unique<Writer>(); }

}  // namespace fsdp
