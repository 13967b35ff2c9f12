// SPDX-License-Identifier: Apache-2.0
//
// FormatDriver: the interface through which every checkpoint format is used. A format is one folder and one line of the
// table in checkpoint/formats/formats.cc; load, verify, inspect, diff, convert and export use only these declarations:
//
//   path --ProbePath--> PathProbe --Recognises--> FormatDriver --Open--> TensorSource               reading
//   SafetensorsTarget{...} --WriterFor--> FormatWriter --Fit, Memory, Write--> file or directory    writing
//
// A read-only format has no FormatWriter. A format that can be written declares, in its driver's header, a plain struct
// of its own options (its target) and WriterFor(target). Options that two formats share are FormatWriteOptions.
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
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct SourceDescription;

// The properties of a path by which a driver recognises it: read once, for all drivers.
struct PathProbe {
  std::string path;
  bool is_directory = false;
  std::string head;  // the first bytes of a file, at most kProbeBytes; empty for a directory
};

// Enough for the name of the first entry of an archive.
inline constexpr int64_t kProbeBytes = 4096;

// kNotFound when `path` does not exist; kInvalidArgument when it is neither a file nor a directory; kPermissionDenied
// when the file cannot be read.
absl::StatusOr<PathProbe> ProbePath(const std::string& path);

// True if `directory` has an entry `name`, even a dangling link. An error of the disk if that is unknown.
absl::StatusOr<bool> HasEntry(const std::string& directory, const std::string& name);

// One format. Drivers are constants of the program: stateless, thread-safe, never destroyed.
class FormatDriver {
 public:
  explicit FormatDriver(FormatTraits traits) : traits_(std::move(traits)) {}
  virtual ~FormatDriver() = default;

  FormatDriver(const FormatDriver&) = delete;
  FormatDriver& operator=(const FormatDriver&) = delete;

  const FormatTraits& traits() const { return traits_; }
  std::string name() const { return std::string(traits_.name); }

  // True when names and first bytes match this format; Open checks the rest. Cheap, without side effects, and never
  // true for the output of another format's writer. An error of the disk if that is unknown: the path must not
  // count as one of another format.
  virtual absl::StatusOr<bool> Recognises(const PathProbe& probe) const = 0;

  // Opens a recognised path. Reads only metadata. kInvalidArgument names the part that cannot be read and the reason;
  // kDataLoss names the damaged file.
  virtual absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                             const TensorSourceOptions& options) const = 0;

  // CheckApply and Open, for every caller. kDataLoss as well if the tensors have more than 2^60 bytes in all, since
  // sums of their sizes would overflow.
  absl::StatusOr<std::unique_ptr<TensorSource>> OpenChecked(const std::string& path,
                                                            const TensorSourceOptions& options) const;

  // The path that Open of a recognised `path` reads now: in a ROOT, its newest step that verifies, which reads all of
  // it; otherwise `path`. `skipped`, if not null, gets a sentence for each newer step that does not verify.
  virtual absl::StatusOr<std::string> Resolve(const std::string& path,
                                              std::vector<std::string>* /*skipped*/ = nullptr) const {
    return path;
  }

  // The place of every value in a recognised path; for a ROOT, in the step that `path` then denotes. The default opens
  // the source and describes it. A format overrides this if its metadata contains more, or makes opening every file
  // unnecessary.
  virtual absl::StatusOr<SourceDescription> Describe(const std::string& path, const TensorSourceOptions& options) const;

  // True for names that the format's writer gives to the files of a directory, so that a directory with only such files
  // may be replaced.
  virtual bool OwnsFileName(const std::string&) const { return false; }

  // True for file names that readers of this format search for in a directory (OwnsFileName's, and names that other
  // programs write): an output of another kind must not have such a name there.
  virtual bool ReadsFileName(const std::string& name) const { return OwnsFileName(name); }

  // True when all of `directory` is a checkpoint of this format, without room for files of other programs. Narrower
  // than Recognises, which also accepts a directory that has a model's file among others; common file names do not
  // suffice. Cheap, without side effects. An error of the disk if that is unknown: then nothing may be written
  // there or replaced.
  virtual absl::StatusOr<bool> IsCheckpointDirectory(const std::string& /*directory*/) const { return false; }

  // kInvalidArgument for options that its sources would ignore: TensorSourceOptions::map of a format without a layout,
  // keep_quantized of a format without quantized types.
  absl::Status CheckApply(const TensorSourceOptions& options) const;

  // True when `path` ends with one of the suffixes.
  bool HasSuffix(const std::string& path) const;

 private:
  const FormatTraits traits_;
};

// The contents of a write, for any format.
struct FormatContents {
  StateDict state = {};  // keys, dtypes, whole shapes, texts, aliases, units; shards are ignored
  int64_t step = -1;     // -1: unknown
  int world_size = 1;    // ranks that wrote the source; the default of targets with ranks
  std::map<std::string, std::string> metadata = {};  // TensorSource::metadata() of the source

  // The state before it was filtered and renamed, for texts that a format stores in it for another format. Null:
  // `state`.
  const StateDict* origin = nullptr;
};

// The options of a write, for any format.
struct FormatWriteOptions {
  bool overwrite = false;  // replace an existing entry atomically; otherwise kAlreadyExists

  int64_t buffer_bytes = int64_t{32} << 20;  // of payload in memory, over all threads
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // may be empty; one call at a time

  // Counts tensors that Write has gone through in addition to their bytes: FormatWriter::NameWork for each in the end.
  // May be empty; thread-safe.
  std::function<void(int64_t tensors)> count_names = {};

  FileSystem* file_system = &PosixFileSystem();  // tests inject faults
};

// The memory that a writer needs in addition to payload buffers.
struct FormatMemory {
  int rank_files = 0;        // files that each may hold a part of every tensor; 0 when each tensor is in one file
  int64_t parity_bytes = 0;  // while parity is computed
};

// Writes checkpoints of one format with its own options. Stateless except for these options.
class FormatWriter {
 public:
  virtual ~FormatWriter() = default;

  // True if Write makes a directory of that name, false for one file.
  virtual bool MakesDirectory(const std::string& destination) const = 0;

  // The memory that a write of `contents` needs on that many threads.
  virtual FormatMemory Memory(const FormatContents&, int /*io_threads*/) const { return {}; }

  // The time that Write takes for the name of each tensor (to lay it out, to describe it), as a multiple of the time in
  // which it reads and writes a small one; 0 if that is most of it.
  virtual int64_t NameWork(const FormatContents&) const { return 0; }

  // Reduces `contents` to the values that the format can hold, before a byte is read. Returns a sentence for each kind
  // of value that is left out. kInvalidArgument when an option of the format is out of range or no value remains.
  virtual absl::StatusOr<std::vector<std::string>> Fit(FormatContents& contents) const = 0;

  // Makes `destination` from `contents`, as reduced by Fit, pulling each element once from `read`, which is called on
  // many threads. It appears complete, by rename of a hidden sibling, or not at all. Blocks until it is durable.
  virtual absl::Status Write(const std::string& destination, const FormatContents& contents, const PayloadReader& read,
                             const FormatWriteOptions& options) const = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_FORMAT_DRIVER_H_
