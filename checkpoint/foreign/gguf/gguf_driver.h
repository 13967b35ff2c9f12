// SPDX-License-Identifier: Apache-2.0
//
// The driver for GGUF, the files of llama.cpp: a file, any part of a split, or a directory with the files of one model.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_DRIVER_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

// One file, with the model's tensors.
struct GgufTarget {
  std::string template_path = {};  // a GGUF model whose keys and list of tensors the file gets; empty: none

  // ggml's name of the type that replaces all but F32 of the template, or, without one, the types of floats with two
  // dimensions or more: "Q8_0". Empty: the template's types, or the dtypes of the tensors.
  std::string type = {};

  // Without a template, a GGUF model whose keys the file gets, in their types: the source, if it is one; empty: the
  // metadata of the source become keys, as texts.
  std::string keys_path = {};
};

// kInvalidArgument for a name that GgufTarget::type must not have lists those that are written.
absl::Status CheckGgufType(std::string_view name);

const FormatDriver& GgufDriver();
std::unique_ptr<FormatWriter> WriterFor(const GgufTarget& target);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_DRIVER_H_
