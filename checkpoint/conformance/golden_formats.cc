// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/conformance/golden_formats.h"

namespace fsdp {

std::vector<std::string> GoldenFormats() {
  return {
      "checkpoint/foreign/gguf/testdata/all_types.json",
      "checkpoint/foreign/gguf/testdata/big_endian.json",
      "checkpoint/foreign/gguf/testdata/random_blocks.json",
      "checkpoint/foreign/gguf/testdata/split.json",
      "checkpoint/foreign/npz/testdata/bfloat16_void.json",
      "checkpoint/foreign/npz/testdata/stored.json",
      "checkpoint/foreign/npz/testdata/deflated.json",
  };
}

}  // namespace fsdp
