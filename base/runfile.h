// SPDX-License-Identifier: Apache-2.0
//
// Runfile: finds programs and data that Bazel built together with this program, however the program was started: as
// bazel-bin/examples/NAME, under `bazel run`, and in tests.
#ifndef FSDP_BASE_RUNFILE_H_
#define FSDP_BASE_RUNFILE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace fsdp {

// The absolute path of `name`, a path in this repository ("tools/ckpt"); kNotFound lists the paths that were tried.
// Each call looks at the file system, so keep the result.
absl::StatusOr<std::string> FindRunfile(std::string_view name);

}  // namespace fsdp

#endif  // FSDP_BASE_RUNFILE_H_
