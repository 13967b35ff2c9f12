// SPDX-License-Identifier: Apache-2.0
//
// WriteGguf: writes a planned GGUF file, pulled block by block from a reader, in bounded memory. Elements are converted
// and quantized on the way. Equal input gives equal bytes.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_WRITER_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_WRITER_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_plan.h"
#include "fsdp/checkpoint/source/format_driver.h"
#include "fsdp/checkpoint/source/payload_reader.h"

namespace fsdp {

// Creates the file `path`, which appears whole, by rename of a hidden sibling, or not at all. Each element is read
// once. kInvalidArgument names a tensor with an element that its quantized type cannot represent: an infinity, a NaN,
// or one that is too large.
absl::Status WriteGguf(const std::string& path, const GgufPlan& plan, const PayloadReader& read,
                       const FormatWriteOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_WRITER_H_
