// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/decode_budget.h"

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

// A quarter of the 64 MiB is left to the allocator and to what a decoder holds for a moment.
constexpr size_t kAllowance = size_t{48} << 20;

}  // namespace

DecodeBudget::DecodeBudget(size_t text_bytes)
    : text_bytes_(text_bytes), limit_(3 * text_bytes + kAllowance), left_(limit_) {}

absl::Status DecodeBudget::Take(size_t nbytes) {
  if (nbytes > left_) {
    return absl::DataLossError(absl::StrCat("the values up to here take more than ", limit_,
                                            " bytes of memory, the limit for ", text_bytes_, " bytes of text"));
  }
  left_ -= nbytes;
  return absl::OkStatus();
}

// Short strings are inside the object; malloc adds up to 24 bytes to others.
size_t HeapBytes(const std::string& text) {
  constexpr size_t kInline = 15;
  return text.capacity() > kInline ? text.capacity() + 24 : 0;
}

}  // namespace fsdp
