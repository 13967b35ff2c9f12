// SPDX-License-Identifier: Apache-2.0
//
// Each path in a chain of links is checked separately: a program that replaces by a rename changes the directory of the
// link, a program that opens the link changes the file at its end. "In a directory" is decided on the physical
// directories above a path, each compared by identity, so that a mount or a link in the middle hides nothing. A
// directory that may be a checkpoint or a ROOT and cannot be asked, since a disk fails or a permission is
// missing, counts as one.
#include "fsdp/checkpoint/formats/output_path.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/save/checkpoint_proof.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/storage/file_identity.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"
#include "fsdp/checkpoint/storage/staged_path.h"

namespace fsdp {
namespace {

absl::Status Refused(const std::string& message) {
  return absl::FailedPreconditionError(absl::StrCat(message, "; choose another place for the output"));
}

// `path`, followed by its physical path if that is spelled differently.
std::string Named(const std::string& path) {
  const std::string physical = PhysicalPath(path);
  return physical == path ? path : absl::StrCat(path, " (", physical, ")");
}

// The physical path of the file or link at `path` itself; a link at its end is not followed.
std::string EntryPath(const std::string& path) {
  const PathParts parts = SplitPath(path);
  std::error_code ignored;
  const bool is_link =
      std::filesystem::is_symlink(std::filesystem::path(JoinPath(parts.directory, parts.name)), ignored);
  return is_link ? JoinPath(PhysicalPath(parts.directory), parts.name) : PhysicalPath(path);
}

// The directories that hold `entry`, an EntryPath, from its own to "/".
std::vector<std::string> DirectoriesAbove(const std::string& entry) {
  std::vector<std::string> directories;
  for (std::filesystem::path at = entry; at.has_relative_path();) {
    at = at.parent_path();
    directories.push_back(at);
  }
  return directories;
}

// OK with true or false when `proof`, of CheckIsOurCheckpoint, shows that a directory is a checkpoint of ours, or that
// it is not one; otherwise `proof`.
absl::StatusOr<bool> IsProven(const absl::Status& proof) {
  if (proof.ok() || absl::IsFailedPrecondition(proof)) return proof.ok();
  return proof;
}

// The format of which `directory` is a checkpoint; null if it is not a checkpoint.
absl::StatusOr<const FormatDriver*> CheckpointIn(const std::string& directory) {
  for (const Format& format : Formats()) {
    FSDP_ASSIGN_OR_RETURN(const bool is_one, format.driver->IsCheckpointDirectory(directory));
    if (is_one) return format.driver;
  }
  return nullptr;
}

// True for the hidden directories of saves and deletions, whatever is in them.
bool IsAtWork(const std::string& name) {
  return ParseStepName(StagedNameOf(name).value_or(DeletedNameOf(name).value_or(""))).has_value();
}

// True when `directory` has a step that is proven to be ours.
absl::StatusOr<bool> IsRoot(const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> steps = ListCheckpoints(directory);
  if (absl::IsFailedPrecondition(steps.status())) return false;  // it is a file
  FSDP_RETURN_IF_ERROR(steps.status());
  absl::Status unknown;
  for (const std::string& step : *steps) {
    const auto is_ours = IsProven(CheckIsOurCheckpoint(PosixFileSystem(), JoinPath(directory, step)));
    if (is_ours.ok() && *is_ours) return true;
    unknown.Update(is_ours.status());
  }
  FSDP_RETURN_IF_ERROR(unknown);
  return false;
}

// The format that takes a directory with a file `name` for its checkpoint; null if none does. A format of directories
// only knows them by the names that it reads.
const FormatDriver* FormatKnownBy(const std::string& name) {
  for (const Format& format : Formats()) {
    const FormatDriver& driver = *format.driver;
    const bool is_read = driver.traits().file.empty() && driver.ReadsFileName(name);
    if (name == driver.traits().model_file || driver.OwnsFileName(name) || is_read) return &driver;
  }
  return nullptr;
}

// An open of a FIFO for writing waits for a reader, and a device takes what it gets: neither keeps an output. Of a URL
// the file system would make directories, where no user would look for the output.
absl::Status CheckIsFileOrDirectory(const std::string& output) {
  if (absl::StrContains(output, "://")) {
    return Refused(absl::StrCat(output, " is a URL, expected a path (ckpt push and train_gpt --upload copy to s3://)"));
  }
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(output, ignored);
  const std::filesystem::file_type type = status.type();
  if (!std::filesystem::exists(status) || type == std::filesystem::file_type::regular ||
      type == std::filesystem::file_type::directory) {
    return absl::OkStatus();
  }
  return Refused(absl::StrCat(output, " is ",
                              type == std::filesystem::file_type::fifo     ? "a FIFO"
                              : type == std::filesystem::file_type::socket ? "a socket"
                                                                           : "a device",
                              ", expected a file or a name that is free"));
}

// Checks one path of the chain; `shown` is the output's name in messages.
class OutputCheck {
 public:
  OutputCheck(const std::string& path, const std::string& shown, const InputPaths& inputs, const OutputOptions& options)
      : path_(path), shown_(shown), physical_(EntryPath(path)), inputs_(inputs), options_(options) {}

  absl::Status Run() const {
    FSDP_RETURN_IF_ERROR(CheckIsNotRead());
    FSDP_RETURN_IF_ERROR(CheckName());
    std::vector<std::string> directories = DirectoriesAbove(physical_);
    if (options_.kind == OutputKind::kRoot) directories.insert(directories.begin(), physical_);
    for (const std::string& directory : directories) FSDP_RETURN_IF_ERROR(CheckDirectory(directory));
    return absl::OkStatus();
  }

 private:
  absl::Status CheckIsNotRead() const {
    if (const auto read = inputs_.Find(path_)) {
      return Refused(absl::StrCat(shown_, " is ", Named(*read), ", which is read"));
    }
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> hidden_paths, HiddenPaths());
    for (const std::string& hidden : hidden_paths) {
      const auto read = inputs_.Find(hidden);
      if (read) return Refused(absl::StrCat("to write ", shown_, " would remove ", Named(*read), ", which is read"));
    }
    if (options_.kind == OutputKind::kRoot) return absl::OkStatus();
    const bool is_replaced = options_.kind != OutputKind::kFile;
    if (const auto inside = is_replaced ? inputs_.FindInside(path_) : std::nullopt) {
      return Refused(absl::StrCat(shown_, " would be replaced, and with it ", Named(*inside), ", which is read"));
    }
    return absl::OkStatus();
  }

  // Paths that a writer of the output removes before it writes, because a crash may have left them.
  absl::StatusOr<std::vector<std::string>> HiddenPaths() const {
    if (options_.kind == OutputKind::kFile || options_.kind == OutputKind::kDirectory) {
      return StagedPath::HiddenSiblings(path_);
    }
    const bool is_root = options_.kind == OutputKind::kRoot;
    const PathParts parts = SplitPath(physical_);
    const std::string directory = is_root ? physical_ : parts.directory;
    std::vector<std::string> paths;
    const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(directory);
    if (absl::IsNotFound(names.status()) || absl::IsFailedPrecondition(names.status())) return paths;
    if (!names.ok()) return Unknown(directory, names.status());
    for (const std::string& name : *names) {
      const std::string owner = StagedNameOf(name).value_or(DeletedNameOf(name).value_or(""));
      if (is_root ? ParseStepName(owner).has_value() : owner == parts.name) paths.push_back(JoinPath(directory, name));
    }
    return paths;
  }

  absl::Status CheckName() const {
    const std::string name = SplitPath(physical_).name;
    if (IsAtWork(name)) {
      return Refused(absl::StrCat(shown_, " is what a save or a deletion of a checkpoint makes and removes"));
    }
    if (options_.kind == OutputKind::kRoot) return absl::OkStatus();
    if (options_.kind != OutputKind::kFile) {
      FSDP_ASSIGN_OR_RETURN(const bool is_root, IsRootHere(physical_));
      if (is_root) return Refused(absl::StrCat(shown_, " is a directory of steps, which would be replaced"));
    }
    return CheckNameInRoot(SplitPath(physical_).directory, name);
  }

  absl::Status CheckNameInRoot(const std::string& directory, const std::string& name) const {
    const FormatDriver* const format = FormatKnownBy(name);
    const bool is_step = options_.kind != OutputKind::kCheckpoint && ParseStepName(name).has_value();
    if (format == nullptr && !is_step) return absl::OkStatus();
    FSDP_ASSIGN_OR_RETURN(const bool is_root, IsRootHere(directory));
    if (!is_root) return absl::OkStatus();
    if (is_step) {
      return Refused(
          absl::StrCat(shown_, " has the name of a step, which a run that saves in ", directory, " treats as its own"));
    }
    return Refused(absl::StrCat(shown_, " would make ", directory, " a checkpoint (", format->name(),
                                "), and readers of its steps would get that instead"));
  }

  absl::Status CheckDirectory(const std::string& directory) const {
    if (const auto read = inputs_.Find(directory)) {
      return Refused(absl::StrCat(shown_, " is inside ", Named(*read), ", which is read"));
    }
    const std::string in = directory == physical_ ? "" : absl::StrCat(" is inside ", directory, ", which");
    if (IsAtWork(SplitPath(directory).name)) {
      return Refused(absl::StrCat(shown_, in, " is what a save or a deletion of a checkpoint makes and removes"));
    }
    const bool is_near = directory == physical_ || directory == SplitPath(physical_).directory;
    const absl::StatusOr<const FormatDriver*> format = CheckpointIn(directory);
    // Directories further up often belong to somebody else.
    if (absl::IsPermissionDenied(format.status()) && !is_near) return absl::OkStatus();
    if (!format.ok()) return Unknown(directory, format.status());
    if (*format == nullptr) return absl::OkStatus();
    if (!(*format)->traits().is_ours) return CheckIsBesideModel(**format, directory, is_near, in);
    return Refused(NothingMayBeAdded(in, **format));
  }

  // In `directory`, a checkpoint of another format.
  absl::Status CheckIsBesideModel(const FormatDriver& format, const std::string& directory, bool is_near,
                                  const std::string& in) const {
    // Files of another format further up, such as a model in a home directory, have nothing to do with a path deep
    // below.
    if (!is_near || IsOwn(directory)) return absl::OkStatus();
    const absl::StatusOr<bool> is_root = IsRoot(directory);
    if (!is_root.ok()) return Unknown(directory, is_root.status());
    // An export among the steps of a ROOT leaves it a ROOT.
    if (*is_root) return absl::OkStatus();
    return options_.may_lie_beside_models ? CheckIsNotOf(format, directory) : Refused(NothingMayBeAdded(in, format));
  }

  std::string NothingMayBeAdded(const std::string& in, const FormatDriver& format) const {
    return absl::StrCat(shown_, in, " is a checkpoint (", format.name(), "), to which nothing may be added");
  }

  // Refuses the output since `directory` may be a checkpoint or a ROOT.
  absl::Status Unknown(const std::string& directory, const absl::Status& status) const {
    return Refused(
        absl::StrCat(shown_, ": cannot tell whether ", directory, " is or holds a checkpoint: ", status.message()));
  }

  // Refuses a name that the model in `directory` reads. A ROOT gets names of steps, which no format uses.
  absl::Status CheckIsNotOf(const FormatDriver& format, const std::string& directory) const {
    if (directory == physical_) {
      if (!IsNewRoot(directory)) return absl::OkStatus();
      return Refused(
          absl::StrCat(shown_, " is a checkpoint (", format.name(), "), which readers would get instead of the steps"));
    }
    const std::string name = SplitPath(physical_).name;
    if (!format.ReadsFileName(name)) return absl::OkStatus();
    return Refused(absl::StrCat(shown_, " is inside ", directory, ", a checkpoint (", format.name(), "), in which ",
                                name, " is a file of the checkpoint"));
  }

  bool IsNewRoot(const std::string& directory) const {
    return !options_.root.empty() && PhysicalPath(options_.root) == directory;
  }

  absl::StatusOr<bool> IsRootHere(const std::string& directory) const {
    if (IsNewRoot(directory)) return true;
    const absl::StatusOr<bool> is_root = IsRoot(directory);
    if (!is_root.ok()) return Unknown(directory, is_root.status());
    return *is_root;
  }

  bool IsOwn(const std::string& directory) const {
    return !options_.own_directory.empty() && PhysicalPath(options_.own_directory) == directory;
  }

  const std::string& path_;
  const std::string& shown_;
  const std::string physical_;  // EntryPath(path_)
  const InputPaths& inputs_;
  const OutputOptions& options_;
};

}  // namespace

void AddCheckpoint(const std::string& path, InputPaths& inputs) {
  const absl::StatusOr<const FormatDriver*> format = FindFormat(path);
  const bool is_root = format.ok() && (*format)->traits().is_root;
  const absl::StatusOr<std::vector<std::string>> steps = ListCheckpoints(path);
  if (!is_root || !steps.ok()) return inputs.Add(path);
  for (const std::string& step : *steps) inputs.Add(JoinPath(path, step));
}

void AddSource(const TensorSource& source, InputPaths& inputs) {
  for (const std::string& file : source.files()) inputs.Add(file);
}

absl::Status CheckOutput(const std::string& output, const InputPaths& inputs, const OutputOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckIsFileOrDirectory(output));
  for (const std::string& path : LinkChain(output)) {
    if (const absl::Status there = IsThere(path).status(); !there.ok()) {
      return Refused(absl::StrCat("cannot tell what ", output, " is: ", there.message()));
    }
    FSDP_RETURN_IF_ERROR(OutputCheck(path, output, inputs, options).Run());
  }
  return absl::OkStatus();
}

}  // namespace fsdp
