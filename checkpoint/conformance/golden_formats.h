// SPDX-License-Identifier: Apache-2.0
//
// Golden checkpoints of formats that only other programs write: files of the real libraries, with the digest of each
// tensor. CASE.json, next to the files:
//
//   {"path": "CASE/ckpt",           what is opened, relative to the JSON file
//    "format": "deepspeed",         FormatTraits::name
//    "step": 3, "world_size": 2,    -1 and 1 if the format does not record them
//    "tensors": {KEY: {"dtype": "float32", "shape": [2, 3], "sha256": "..."}, ...},     all of contents()
//    "left_out": ["part of an entry of TensorSource::left_out()", ...]}
//
// KEY is StateKey::ToString(); the digest is of the row-major little-endian elements.
#ifndef FSDP_CHECKPOINT_CONFORMANCE_GOLDEN_FORMATS_H_
#define FSDP_CHECKPOINT_CONFORMANCE_GOLDEN_FORMATS_H_

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {

// CASE.json of every golden checkpoint, from the root of the repository. A new format has at least one line.
std::vector<std::string> GoldenFormats();

// For INSTANTIATE_TEST_SUITE_P.
std::string NameOfGolden(const testing::TestParamInfo<std::string>& info);

// The files of the checkpoint at `path`, sorted: all that are in a directory, or `path` itself.
std::vector<std::string> FilesOf(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONFORMANCE_GOLDEN_FORMATS_H_
