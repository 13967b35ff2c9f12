// SPDX-License-Identifier: Apache-2.0
//
// FormatDriver: the door through which every checkpoint format is used. A format is one folder and one line of the
// table in checkpoint/formats/formats.cc; load, verify, inspect, diff, convert and export know only what is declared
// here:
//
//   path --ProbePath--> PathProbe --Recognises--> FormatDriver --Open--> TensorSource               reading
//   SafetensorsTarget{...} --WriterFor--> FormatWriter --Fit, Memory, Write--> file or directory    writing
//
// A format that is only read has no FormatWriter. A format that is written declares, in its driver's header, a plain
// struct of its own options (its target) and WriterFor(target). Options that two formats share are FormatWriteOptions.
#ifndef FSDP_CHECKPOINT_SOURCE_FORMAT_DRIVER_H_
#define FSDP_CHECKPOINT_SOURCE_FORMAT_DRIVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The properties of a path by which a driver recognises it: read once, for all drivers.
struct PathProbe {
  std::string path;
  bool is_directory = false;
  std::string head;  // the first bytes of a file, at most kProbeBytes; empty for a directory
};

// Enough for the name of the first entry of an archive.
inline constexpr int64_t kProbeBytes = 4096;

// kNotFound when nothing has the name `path`; kInvalidArgument when it is neither a file nor a directory;
// kPermissionDenied when the file cannot be read.
absl::StatusOr<PathProbe> ProbePath(const std::string& path);

// True when something, even a link to nothing, has the name `name` in `directory`.
bool HasEntry(const std::string& directory, const std::string& name);

// One format. Drivers are constants of the program: stateless, thread-safe, never destroyed.
class FormatDriver {
 public:
  explicit FormatDriver(FormatTraits traits) : traits_(std::move(traits)) {}
  virtual ~FormatDriver() = default;

  FormatDriver(const FormatDriver&) = delete;
  FormatDriver& operator=(const FormatDriver&) = delete;

  const FormatTraits& traits() const { return traits_; }
  std::string name() const { return std::string(traits_.name); }

  // True when names and first bytes are those of this format; Open finds out whether the rest is. Cheap, without side
  // effects, and never true for what the writer of another format makes.
  virtual bool Recognises(const PathProbe& probe) const = 0;

  // Opens a path that is recognised. Reads metadata only. kInvalidArgument says what cannot be read and why; kDataLoss
  // names the damaged file.
  virtual absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                             const TensorSourceOptions& options) const = 0;

  // The place of every value in a path that is recognised; for a ROOT, in the step that `path` then names. The default
  // opens the source and asks it. A format overrides this if its metadata contain more, or spare the opening of every
  // file.
  virtual absl::StatusOr<SourceDescription> Describe(const std::string& path, const TensorSourceOptions& options) const;

  // True for names that the format's writer gives to the files of a directory, so that a directory which holds no other
  // file may be replaced.
  virtual bool OwnsFileName(const std::string&) const { return false; }

  // True for file names that readers of this format look for in a directory (OwnsFileName's, and those that other
  // programs write): an output of another kind must not have such a name there.
  virtual bool ReadsFileName(const std::string& name) const { return OwnsFileName(name); }

  // True when all of `directory` is a checkpoint of this format, in which other programs' files have no place. Narrower
  // than Recognises, which also takes a directory where the file of a model lies among others, and stricter: the names
  // of a common kind do not do. Cheap, without side effects.
  virtual bool IsCheckpointDirectory(const std::string& /*directory*/) const { return false; }

  // True when `path` ends with one of the suffixes.
  bool HasSuffix(const std::string& path) const;

 private:
  const FormatTraits traits_;
};

// The contents of a write, whatever the format.
struct FormatContents {
  StateDict state = {};  // keys, dtypes, whole shapes, texts, aliases, units; shards are ignored
  int64_t step = -1;     // -1: unknown
  int world_size = 1;    // ranks that wrote the source; the default of targets with ranks
  std::map<std::string, std::string> metadata = {};  // TensorSource::metadata() of the source

  // The state before it was filtered and renamed, for texts that a format keeps there for another one. Null: `state`.
  const StateDict* origin = nullptr;
};

// How it is written, whatever the format.
struct FormatWriteOptions {
  bool overwrite = false;  // replace what has the name, at once and whole; otherwise kAlreadyExists

  int64_t buffer_bytes = int64_t{32} << 20;  // of payload in memory, over all threads
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // may be empty; one call at a time

  FileSystem* file_system = &PosixFileSystem();  // tests inject faults
};

// The memory that a writer needs in addition to payload buffers.
struct FormatMemory {
  int rank_files = 0;        // files that each may hold a part of every tensor; 0 when each tensor lies in one file
  int64_t parity_bytes = 0;  // while parity is computed
};

// A format with options of its own chosen: writes checkpoints. Stateless beyond its options.
class FormatWriter {
 public:
  virtual ~FormatWriter() = default;

  // Whether Write makes a directory of that name, or one file.
  virtual bool MakesDirectory(const std::string& destination) const = 0;

  // The memory that a write of `contents` needs on so many threads.
  virtual FormatMemory Memory(const FormatContents&, int /*io_threads*/) const { return {}; }

  // Makes `contents` what the format can hold, before a byte is read. Returns a sentence for each thing that is left
  // out. kInvalidArgument when an option of the format is out of its range or nothing is left to write.
  virtual absl::StatusOr<std::vector<std::string>> Fit(FormatContents& contents) const = 0;

  // Makes `destination` of `contents`, as Fit left them, pulling each element once from `read`, which is called on many
  // threads. It appears whole, by rename of a hidden sibling, or not at all. Blocks until it is durable.
  virtual absl::Status Write(const std::string& destination, const FormatContents& contents, const PayloadReader& read,
                             const FormatWriteOptions& options) const = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_FORMAT_DRIVER_H_
