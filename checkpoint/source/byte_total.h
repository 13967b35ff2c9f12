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
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

class ByteTotal {
 public:
  // kDataLoss beyond 2^60 bytes in all.
  absl::Status Add(const std::string& name, DType dtype, const Shape& shape) {
    return Take(dtype, shape) ? absl::OkStatus() : TooMany(name, shape);
  }
  // The same for a million tensors, whose names are made only for an error.
  absl::Status Add(const StateKey& key, DType dtype, const Shape& shape) {
    return Take(dtype, shape) ? absl::OkStatus() : TooMany(key.ToString(), shape);
  }

 private:
  bool Take(DType dtype, const Shape& shape) {
    if (shape.numel() > left_ / SizeOf(dtype)) return false;
    left_ -= shape.numel() * SizeOf(dtype);
    return true;
  }

  static absl::Status TooMany(const std::string& name, const Shape& shape) {
    return absl::DataLossError(absl::StrCat("tensor ", Quote(name), ": with its shape ", shape.ToString(),
                                            " the tensors have more than 2^60 bytes"));
  }

  int64_t left_ = int64_t{1} << 60;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_BYTE_TOTAL_H_
