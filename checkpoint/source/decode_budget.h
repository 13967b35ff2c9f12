// SPDX-License-Identifier: Apache-2.0
//
// DecodeBudget: the memory that the values of one text may take, so that a text with many short values is refused
// before it costs more than four times its size and 64 MiB, the text included. A decoder takes the memory of a value
// before it keeps the value. Texts that this project writes take about half of it.
//
// Used by one thread.
#ifndef FSDP_CHECKPOINT_SOURCE_DECODE_BUDGET_H_
#define FSDP_CHECKPOINT_SOURCE_DECODE_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace fsdp {

class DecodeBudget {
 public:
  explicit DecodeBudget(size_t text_bytes);

  // kDataLoss, with both sizes, when the values together would take more. `nbytes` is an estimate.
  absl::Status Take(size_t nbytes);

  // Memory that was taken and is free again.
  void Return(size_t nbytes) { left_ += nbytes; }

 private:
  const size_t text_bytes_;
  const size_t limit_;
  size_t left_;
};

// The memory of a string in addition to the object.
size_t HeapBytes(const std::string& text);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_DECODE_BUDGET_H_
