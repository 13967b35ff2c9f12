// SPDX-License-Identifier: Apache-2.0
//
// FileContents: what lies where in the files of a checkpoint, by byte: the manifest read the other way round. A block
// of a LOCAL checkpoint holds parts of many tensors. Pure; immutable once made.
#ifndef FSDP_CHECKPOINT_FORMAT_FILE_CONTENTS_H_
#define FSDP_CHECKPOINT_FORMAT_FILE_CONTENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "fsdp/checkpoint/format/manifest.h"

namespace fsdp {

class FileContents {
 public:
  // Of the files that `manifest` or `record` names, which must outlive it.
  explicit FileContents(const Manifest& manifest);
  explicit FileContents(const FileRecord& record);

  // What bytes `range` of files[file] are: `tensor "model/w"`, `tensors "model/a", "model/b"`, at most 16 of them
  // and how many more, `text "extra/step"`, `record`, `parity`; empty where the manifest does not say.
  std::string NameOf(int file, const ByteRange& range) const;

  // Calls `visit` with each tensor (an index into StoredValues::tensors) that has bytes in `range`, and with these
  // bytes.
  void VisitTensors(int file, const ByteRange& range,
                    absl::FunctionRef<void(int tensor, const ByteRange& part)> visit) const;

 private:
  struct Part {
    ByteRange range;
    int32_t tensor = -1;  // -1 for a text
    int32_t text = -1;
  };

  FileContents(const StoredValues& values, const StoredParity* parity);

  const StoredValues& values_;
  const StoredParity* const parity_;      // null in a record
  std::vector<std::vector<Part>> parts_;  // by file; by offset
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMAT_FILE_CONTENTS_H_
