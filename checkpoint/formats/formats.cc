// SPDX-License-Identifier: Apache-2.0
//
// The first line of the table that accepts a path's names and first bytes recognises it. The order matters only for
// directories, which may hold files of several formats: a manifest is decisive; an exported model comes before the
// training state that other programs left in the same directory; steps of ours come after it (checkpoint_driver.h), but
// before formats that know a directory by files of any name. GGUF, a file of any name, is last.
// Files are distinguished by their first bytes, which no two drivers accept. A file that was not downloaded, and
// one that is known as a part of a checkpoint, is refused before; a path that nothing recognises gets the best answer
// that known_paths.h and lookalike_file.h have.
#include "fsdp/checkpoint/formats/formats.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_driver.h"
#include "fsdp/checkpoint/foreign/flax/flax_driver.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_file_driver.h"
#include "fsdp/checkpoint/foreign/keras/keras_driver.h"
#include "fsdp/checkpoint/foreign/onnx/onnx_driver.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_driver.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/torch_checkpointing_driver.h"
#include "fsdp/checkpoint/formats/known_paths.h"
#include "fsdp/checkpoint/source/lookalike_file.h"

namespace fsdp {
namespace {

// "a, b or c".
std::string JoinedWithOr(const std::vector<std::string>& names) {
  if (names.size() < 2) return absl::StrJoin(names, "");
  return absl::StrCat(absl::StrJoin(names.begin(), names.end() - 1, ", "), " or ", names.back());
}

// "a safetensors file". The driver that reads files of our own format is another one.
std::string FileOf(const FormatTraits& traits) {
  return std::string(traits.is_ours ? Hdf5FileDriver().traits().file : traits.file);
}

// Null if no format recognises the path.
absl::StatusOr<const FormatDriver*> Recognise(const PathProbe& probe) {
  for (const Format& format : Formats()) {
    FSDP_ASSIGN_OR_RETURN(const bool is_known, format.driver->Recognises(probe));
    if (is_known) return format.driver;
  }
  return nullptr;
}

bool IsRecognised(const std::string& path) {
  const absl::StatusOr<PathProbe> probe = ProbePath(path);
  return probe.ok() && Recognise(*probe).value_or(nullptr) != nullptr;
}

// An error that describes a path that is a part of a checkpoint, or holds some.
absl::Status CheckIsNoKnownPath(const PathProbe& probe) {
  const std::string known = DescribeKnownPath(probe, IsRecognised);
  return known.empty() ? absl::OkStatus() : absl::InvalidArgumentError(known);
}

absl::Status NotRecognised(const PathProbe& probe) {
  FSDP_RETURN_IF_ERROR(probe.is_directory ? CheckIsNoKnownPath(probe) : CheckIsNoLookalike(probe.path));
  std::vector<std::string> expected;
  for (const Format& format : Formats()) {
    const FormatTraits& traits = format.driver->traits();
    const std::string_view sign = probe.is_directory ? traits.in_directory : traits.file;
    if (!sign.empty()) expected.emplace_back(sign);
  }
  std::error_code ignored;
  const bool is_empty = probe.is_directory && std::filesystem::is_empty(probe.path, ignored);
  return absl::InvalidArgumentError(absl::StrCat(probe.path, is_empty ? " is empty, and" : "",
                                                 " is not a checkpoint: expected ", JoinedWithOr(expected),
                                                 probe.is_directory ? " in it" : ", or a directory"));
}

}  // namespace

const std::vector<Format>& Formats() {
  static const auto* formats = new std::vector<Format>{
      {&CheckpointDriver(), Hdf5Target()},
      {&Hdf5FileDriver()},
      {&SafetensorsDriver(), SafetensorsTarget()},
      {&MegatronDriver(), MegatronTarget()},
      {&DcpDriver(), DcpTarget()},
      {&DeepSpeedDriver(), DeepSpeedTarget()},
      {&TorchDriver(), TorchTarget()},
      {&CheckpointRootDriver()},
      {&TorchCheckpointingDriver()},
      {&NpzDriver(), NpzTarget()},
      {&KerasDriver()},
      {&FlaxDriver()},
      {&OnnxDriver()},
      {&OrbaxDriver()},
      {&GgufDriver(), GgufTarget()},
  };
  return *formats;
}

absl::StatusOr<const FormatDriver*> FindFormat(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const PathProbe probe, ProbePath(path));
  if (!probe.is_directory) {
    const FileHead head = {probe.head, static_cast<int64_t>(probe.head.size())};
    FSDP_RETURN_IF_ERROR(CheckIsDownloaded(path, head));
    FSDP_RETURN_IF_ERROR(CheckIsNoKnownPath(probe));
  }
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, Recognise(probe));
  if (driver != nullptr) return driver;
  return NotRecognised(probe);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenTensorSource(const std::string& path,
                                                               const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(path));
  return driver->OpenChecked(path, options);
}

// Two drivers may share a name ("hdf5"); at most one of them is written.
std::optional<FormatTarget> FindTarget(std::string_view name) {
  for (const Format& format : Formats()) {
    if (format.target && format.driver->traits().name == name) return format.target;
  }
  return std::nullopt;
}

// In the order of the variant, which is the order in all help texts, and not the order of recognition.
std::string TargetNames() {
  std::vector<std::string> names(std::variant_size_v<FormatTarget>);
  for (const Format& format : Formats()) {
    if (format.target) names[format.target->index()] = format.driver->name();
  }
  return JoinedWithOr(names);
}

FormatTarget DefaultTarget(const std::string& destination) {
  for (const Format& format : Formats()) {
    if (format.target && format.driver->HasSuffix(destination)) return *format.target;
  }
  return Hdf5Target();
}

absl::Status CheckSuffix(const std::string& destination, const FormatTarget& target) {
  const FormatDriver& chosen = DriverOf(target);
  for (const Format& format : Formats()) {
    if (!format.target || !format.driver->HasSuffix(destination) || format.driver == &chosen) continue;
    return absl::InvalidArgumentError(absl::StrCat(destination, " names ", FileOf(format.driver->traits()),
                                                   ", but the format to write is ", chosen.name(),
                                                   ": choose another name, or that format"));
  }
  return absl::OkStatus();
}

const FormatDriver& DriverOf(const FormatTarget& target) {
  for (const Format& format : Formats()) {
    if (format.target && format.target->index() == target.index()) return *format.driver;
  }
  CheckFailed("a FormatTarget without a line in the table of formats", __FILE__, __LINE__);
}

std::unique_ptr<FormatWriter> MakeWriter(const FormatTarget& target) {
  return std::visit([](const auto& options) { return WriterFor(options); }, target);
}

}  // namespace fsdp
