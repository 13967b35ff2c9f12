// SPDX-License-Identifier: Apache-2.0
//
// FileContents: finds the tensors, texts and other contents at given bytes of a checkpoint's files: the inverse of the
// manifest. A digest block of a LOCAL checkpoint can hold parts of many tensors. Messages about damage name them. Pure;
// immutable once made, so usable by several threads.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_FILE_CONTENTS_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_FILE_CONTENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "fsdp/checkpoint/native/format/manifest.h"

namespace fsdp {

class FileContents {
 public:
  // The contents of the files that `manifest` or `record` names; the argument must outlive this. Takes O(n log n) for n
  // intervals.
  explicit FileContents(const Manifest& manifest);
  explicit FileContents(const FileRecord& record);

  // Names the contents of bytes `range` of files[file] for a message: `tensor "model/w"`; `tensors "model/a",
  // "model/b"` with at most 16 names and the number of further ones; `text "extra/step"`; `record`; `parity`. Empty if
  // the manifest has nothing in `range`.
  std::string NameOf(int file, const ByteRange& range) const;

  // Calls `visit` with each tensor (an index into StoredValues::tensors) that has bytes in `range`, and with these
  // bytes.
  void VisitTensors(int file, const ByteRange& range,
                    absl::FunctionRef<void(int tensor, const ByteRange& part)> visit) const;

 private:
  // 24 bytes: a checkpoint of many ranks has millions of parts.
  struct Part {
    ByteRange range;
    bool is_text = false;
    int32_t index = 0;  // into StoredValues::texts or tensors
  };

  FileContents(const StoredValues& values, const StoredParity* parity);

  const StoredValues& values_;
  const StoredParity* const parity_;      // null in a record
  std::vector<std::vector<Part>> parts_;  // by file; by offset
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_FILE_CONTENTS_H_
