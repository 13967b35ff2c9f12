// SPDX-License-Identifier: Apache-2.0
//
// RangeNames: describes a byte range of a checkpoint's file in words, for messages about damage. The manifest covers
// all bytes that this checkpoint reads. Copies of texts in a rank file and bytes of a linked file that an incremental
// save no longer uses are described only by the file's own record. Thread-safe.
#ifndef FSDP_CHECKPOINT_NATIVE_VERIFY_RANGE_NAMES_H_
#define FSDP_CHECKPOINT_NATIVE_VERIFY_RANGE_NAMES_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "fsdp/checkpoint/native/format/file_contents.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

class RangeNames final {
 public:
  // For the files in `directory`; all arguments must outlive this. Reads a record only when it is needed.
  RangeNames(FileSystem& files, const std::string& directory, const Manifest& manifest)
      : files_(files), directory_(directory), manifest_(manifest), contents_(manifest) {}

  // The contents of the files according to the manifest.
  const FileContents& contents() const { return contents_; }

  // FileContents::NameOf of `range` in files[file]. For bytes unknown to the manifest: `copy of text "extra/step"`,
  // `tensor "model/w" of step 50, unused here`; "copy of a text" and "payload" when the record is damaged too. May read
  // the record of the file, once.
  std::string NameOf(int file, const ByteRange& range);

 private:
  // A file as its own record describes it.
  struct Recorded {
    explicit Recorded(FileRecord read) : record(std::move(read)), contents(record) {}

    const FileRecord record;
    const FileContents contents;
  };

  // Reads the record on the first call for a file; null when it cannot be read.
  const Recorded* RecordOf(int file);

  FileSystem& files_;
  const std::string& directory_;
  const Manifest& manifest_;
  const FileContents contents_;

  std::mutex mutex_;
  std::map<int, std::unique_ptr<Recorded>> recorded_;  // guarded by mutex_; by file, only needed ones
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_VERIFY_RANGE_NAMES_H_
