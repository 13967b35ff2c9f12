// SPDX-License-Identifier: Apache-2.0
//
// Golden files, for tests: torch files and DCP directories that the real PyTorch wrote (testdata/make_testdata.py), and
// the digests of their tensors as PyTorch read them back (testdata/expected.json).
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_GOLDEN_TESTUTIL_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_GOLDEN_TESTUTIL_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "nlohmann/json.hpp"

namespace fsdp {

// The absolute path of a file or directory of testdata/.
std::string TorchTestData(const std::string& name);

// All of expected.json, by name of the file or directory.
const nlohmann::json& ExpectedOfAll();

enum class GoldenParts { kAll, kModel };

// OK when `source` has exactly the tensors of `name` that `parts` selects, each with the same dtype, shape and bytes
// (aliases count as tensors), and the same param_groups; otherwise an error that lists every difference.
absl::Status CheckGolden(const TensorSource& source, const std::string& name, GoldenParts parts = GoldenParts::kAll);

// All elements of a tensor, as bytes.
absl::StatusOr<std::string> ReadWhole(const TensorSource& source, const StateKey& key);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_GOLDEN_TESTUTIL_H_
