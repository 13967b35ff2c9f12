// SPDX-License-Identifier: Apache-2.0
//
// Runfile: finds what was built together with this program: other programs and data, wherever the program was started
// from. It works for bazel-bin/examples/NAME, under `bazel run`, and in tests.
#ifndef FSDP_BASE_RUNFILE_H_
#define FSDP_BASE_RUNFILE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace fsdp {

// The absolute path of `name`, a path in this repository ("tools/ckpt"); kNotFound lists where it was looked for.
absl::StatusOr<std::string> FindRunfile(std::string_view name);

}  // namespace fsdp

#endif  // FSDP_BASE_RUNFILE_H_
