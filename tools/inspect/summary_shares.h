// SPDX-License-Identifier: Apache-2.0
//
// SummaryShares: what the sections and files of a CheckpointSummary hold, counted.
#ifndef FSDP_TOOLS_INSPECT_SUMMARY_SHARES_H_
#define FSDP_TOOLS_INSPECT_SUMMARY_SHARES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/tools/inspect/ckpt_summary.h"

namespace fsdp {

// Of all elements of `tensor`.
int64_t PayloadBytes(const StoredTensor& tensor);

// Tensors and bytes in a section or in a file.
struct TensorShare {
  int64_t tensors = 0;
  int64_t bytes = 0;

  void Add(int64_t nbytes) {
    ++tensors;
    bytes += nbytes;
  }
  std::string ToString() const;
};

// A section also has a number of elements, and tensors by dtype.
struct SectionShare {
  TensorShare share;
  int64_t elements = 0;
  std::map<DType, int64_t> dtypes;

  void Add(const StoredTensor& tensor);

  // "52 tensors, 3.4 MB: 842,624 elements, float32", or ", 50 of float32, 2 of int64".
  std::string ToString() const;
};

// The widths of the columns of the list of tensors: of the longest text, up to a limit. A longer text moves its row.
struct TensorColumnWidths {
  int name = 0;
  int type = 0;

  void Add(const StoredTensor& tensor);
  static std::string TypeText(const StoredTensor& tensor);
};

// The tensors of each section, and the tensors and bytes in each file, by the file's index. A tensor counts once for
// each file that has a part of it.
struct SummaryShares {
  TensorShare all;
  std::map<StateKey::Section, SectionShare> sections;
  TensorColumnWidths columns;
  std::vector<TensorShare> files;

  // In one pass over the tensors, since each may be made only for it.
  static SummaryShares Of(const CheckpointSummary& summary);
};

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_SUMMARY_SHARES_H_
