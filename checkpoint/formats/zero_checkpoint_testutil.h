// SPDX-License-Identifier: Apache-2.0
//
// WriteZeros: a checkpoint of any format, for tests of its path or its opening.
#ifndef FSDP_CHECKPOINT_FORMATS_ZERO_CHECKPOINT_TESTUTIL_H_
#define FSDP_CHECKPOINT_FORMATS_ZERO_CHECKPOINT_TESTUTIL_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/zero_payload_testutil.h"

namespace fsdp {

// Step 1 with the parameters `fqns`, each of `numel` float32 zeros, at `path`, whose directories are made.
inline void WriteZeros(const std::string& path, const FormatTarget& target, const std::vector<std::string>& fqns,
                       int64_t numel) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  FormatContents contents;
  contents.step = 1;
  ShardedTensor tensor;
  tensor.shape = {numel};
  for (const std::string& fqn : fqns) contents.state.Set(StateKey::Model(fqn), tensor);
  const std::unique_ptr<FormatWriter> writer = MakeWriter(target);
  EXPECT_OK(writer->Fit(contents).status());
  EXPECT_OK(writer->Write(path, contents, ZeroPayload(), {}));
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMATS_ZERO_CHECKPOINT_TESTUTIL_H_
