// SPDX-License-Identifier: Apache-2.0
//
// Files that downloads, clones and copies leave under the name of a checkpoint's file: pointers of Git LFS, pages,
// archives, empty files. A reader would only say which rule of its format they break, which hides the reason.
#ifndef FSDP_CHECKPOINT_SOURCE_LOOKALIKE_FILE_H_
#define FSDP_CHECKPOINT_SOURCE_LOOKALIKE_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The first bytes of a file, up to kLookalikeBytes, and its size.
struct FileHead {
  std::string_view bytes;
  int64_t nbytes = 0;
};

inline constexpr int64_t kLookalikeBytes = 512;

// A row of the table: how to recognise a kind of file, and a sentence about it that ends with what to do.
struct LookalikeFile {
  std::string_view name;
  absl::StatusCode code;
  bool (*matches)(const FileHead& head);
  std::string (*text)(const FileHead& head);  // without the path, which comes before it: "has 0 bytes: ..."

  // It stands for a file that was not downloaded: no file of a checkpoint, of any name, begins so.
  bool stands_for_another = false;
};

// In the order of recognition. No file that a reader of this project accepts matches one.
const std::vector<LookalikeFile>& LookalikeFiles();

// An error that says what the file `path` is, if the table has it: kDataLoss if it was the right file once, else
// kInvalidArgument. OK otherwise, for a .json file of JSON, and for a file that cannot be read, of which the error of
// reading says more.
absl::Status CheckIsNoLookalike(const std::string& path, const FileHead& head);
absl::Status CheckIsNoLookalike(const File& file);
absl::Status CheckIsNoLookalike(const std::string& path);

// `error` of a text that could not be parsed, or, if the text is no text of its kind, the error that says what it is:
// empty, or of a row that stands for another file. OK without an error.
absl::Status ErrorOfText(const absl::Status& error, const std::string& path, std::string_view contents);

// The same as CheckIsNoLookalike, only by the rows that stand for another file: before such a file is read, because
// its few bytes could be elements, or JSON that means something else. Of a File, reads kLookalikeBytes of one that is
// no larger than a pointer is.
absl::Status CheckIsDownloaded(const std::string& path, const FileHead& head);
absl::Status CheckIsDownloaded(const File& file);
absl::Status CheckIsDownloaded(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_LOOKALIKE_FILE_H_
