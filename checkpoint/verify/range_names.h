// SPDX-License-Identifier: Apache-2.0
//
// RangeNames: what bytes of a checkpoint's files are, in words, for messages about damage. The manifest says it of all
// that this checkpoint reads; the rest of a rank file, the copies of the texts and what an incremental save no longer
// uses of a linked file, is known to the file's own record alone. Thread-safe.
#ifndef FSDP_CHECKPOINT_VERIFY_RANGE_NAMES_H_
#define FSDP_CHECKPOINT_VERIFY_RANGE_NAMES_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "fsdp/checkpoint/format/file_contents.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

class RangeNames final {
 public:
  // Of the files in `directory`; all three must outlive it. Nothing is read until a record is needed.
  RangeNames(FileSystem& files, const std::string& directory, const Manifest& manifest)
      : files_(files), directory_(directory), manifest_(manifest), contents_(manifest) {}

  // As the manifest has it.
  const FileContents& contents() const { return contents_; }

  // FileContents::NameOf, and where the manifest does not say: `copy of text "extra/step"`, `tensor "model/w" of step
  // 50, unused here`; without names where the record is damaged too.
  std::string NameOf(int file, const ByteRange& range);

 private:
  // A file as its own record describes it.
  struct Recorded {
    explicit Recorded(FileRecord read) : record(std::move(read)), contents(record) {}

    const FileRecord record;
    const FileContents contents;
  };

  // Null when the record cannot be read.
  const Recorded* RecordOf(int file);

  FileSystem& files_;
  const std::string& directory_;
  const Manifest& manifest_;
  const FileContents contents_;

  std::mutex mutex_;
  std::map<int, std::unique_ptr<Recorded>> recorded_;  // guarded by mutex_; by file, those that were needed
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_VERIFY_RANGE_NAMES_H_
