// SPDX-License-Identifier: Apache-2.0
//
// ByteTotal: the bytes of all tensors of a checkpoint. Views, stacks and sparse files can claim any size; within the
// limit sums of bytes do not overflow.
#ifndef FSDP_CHECKPOINT_SOURCE_BYTE_TOTAL_H_
#define FSDP_CHECKPOINT_SOURCE_BYTE_TOTAL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

class ByteTotal {
 public:
  // kDataLoss beyond 2^60 bytes in all.
  absl::Status Add(const std::string& name, DType dtype, const Shape& shape) {
    if (shape.numel() > left_ / SizeOf(dtype)) {
      return absl::DataLossError(absl::StrCat("tensor ", Quote(name), ": with its shape ", shape.ToString(),
                                              " the tensors have more than 2^60 bytes"));
    }
    left_ -= shape.numel() * SizeOf(dtype);
    return absl::OkStatus();
  }

 private:
  int64_t left_ = int64_t{1} << 60;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_BYTE_TOTAL_H_
