// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/terminal.h"

#include <string>

#include "fsdp/base/escape_text.h"

namespace fsdp {

void WriteText(std::string_view text, std::FILE* stream) {
  const std::string escaped = EscapeText(text, "\n\t\"'\\");
  // In one call, which holds the stream's lock.
  std::fwrite(escaped.data(), 1, escaped.size(), stream);
}

}  // namespace fsdp
