// SPDX-License-Identifier: Apache-2.0
//
// A state for tests of the C functions, and what they share.
#ifndef FSDP_CHECKPOINT_C_API_C_API_TESTUTIL_H_
#define FSDP_CHECKPOINT_C_API_C_API_TESTUTIL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "gtest/gtest.h"

namespace fsdp {

// A new directory of the running test.
std::string NewCApiDirectory();

using CState = std::unique_ptr<fsdp_state, void (*)(fsdp_state*)>;
CState NewCState(int32_t kind);

using CReader = std::unique_ptr<fsdp_reader, void (*)(fsdp_reader*)>;
CReader OpenCReader(const std::string& path);

template <typename Element>
std::vector<Element> ReadAll(const fsdp_reader* reader, const char* name, int32_t dtype, int64_t begin, int64_t end) {
  std::vector<Element> elements(end - begin);
  const fsdp_read read = {fsdp_reader_find(reader, name), begin, end, dtype, elements.data()};
  EXPECT_EQ(fsdp_reader_read(reader, &read, 1, 0), FSDP_OK) << fsdp_error_message();
  return elements;
}

// 10 rows of 3, a scalar, a bfloat16, and an empty tensor; element i of the first is i.
struct CModel {
  std::vector<float> weight = std::vector<float>(30);
  std::vector<uint16_t> half = {0x3f80, 0x4000, 0x4040, 0x4080};  // 1, 2, 3, 4 in bfloat16
  float step = 7;

  CModel();

  // Adds rows [begin, end) of "model/w", and on rank 0 the rest.
  void AddTo(fsdp_state* state, int64_t begin, int64_t end, bool is_first) const;
};

// Expects a CModel in the checkpoint.
void ExpectCModel(const std::string& path, int64_t step, int32_t world_size);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_C_API_C_API_TESTUTIL_H_
