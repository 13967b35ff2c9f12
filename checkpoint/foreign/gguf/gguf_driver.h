// SPDX-License-Identifier: Apache-2.0
//
// The driver for GGUF, the files of llama.cpp: a file, any part of a split, or a directory with the files of one model.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_DRIVER_H_

#include <memory>

#include "fsdp/checkpoint/foreign/gguf/gguf_plan.h"
#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

const FormatDriver& GgufDriver();
std::unique_ptr<FormatWriter> WriterFor(const GgufTarget& target);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_DRIVER_H_
