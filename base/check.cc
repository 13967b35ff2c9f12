// SPDX-License-Identifier: Apache-2.0

#include "fsdp/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace fsdp {

void CheckFailed(std::string_view what, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %.*s\n", file, line, static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace fsdp
