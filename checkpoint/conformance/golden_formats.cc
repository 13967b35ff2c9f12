// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/conformance/golden_formats.h"

namespace fsdp {

std::vector<std::string> GoldenFormats() {
  return {
      "checkpoint/foreign/npz/testdata/bfloat16_void.json",
      "checkpoint/foreign/npz/testdata/stored.json",
      "checkpoint/foreign/npz/testdata/deflated.json",
  };
}

}  // namespace fsdp
