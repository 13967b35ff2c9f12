// SPDX-License-Identifier: Apache-2.0
//
// Checks with NumPy the archives that we write. checkpoint/conformance tests the rules for every format.
#include "fsdp/checkpoint/foreign/npz/npz_writer.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/npz/npy_header.h"
#include "fsdp/checkpoint/foreign/torch/sha256_testutil.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Python() { return PosixFileSystem().Exists("/usr/bin/python3") ? "/usr/bin/python3" : "python3"; }

// The model tensors of AwkwardTensors whose dtypes NumPy's files can name.
std::vector<TestTensor> Tensors() {
  std::vector<TestTensor> tensors;
  for (const TestTensor& tensor : AwkwardTensors()) {
    const bool is_model = tensor.key.section == StateKey::Section::kModel;
    if (is_model && EncodeNpyHeader(tensor.dtype, tensor.shape).ok()) tensors.push_back(tensor);
  }
  return tensors;
}

TEST(NpzWriterTest, NumPyReadsEveryTensorWithTheSameShapeAndBytes) {
  const std::string directory = NewTestDirectory();
  nlohmann::json expected = nlohmann::json::object();
  for (const TestTensor& tensor : Tensors()) {
    const Tensor elements = MakeElements(tensor, {0, tensor.shape.numel()});
    const std::string bytes(elements.data_as<char>(), elements.nbytes());
    expected[tensor.key.fqn] = {{"shape", std::vector<int64_t>(tensor.shape.dims().begin(), tensor.shape.dims().end())},
                                {"sha256", Sha256(bytes)}};
  }
  WriteAll(directory + "/expected.json", expected.dump());
  const StateDict state = FullState(Tensors());
  ASSERT_OK(WriteNpz(directory + "/x.npz", state, ReadFromMemory(state)));
  ASSERT_OK_AND_ASSIGN(const ProgramResult result,
                       RunProgram({Python(), "checkpoint/foreign/npz/testdata/check_with_numpy.py",
                                   directory + "/x.npz", directory + "/expected.json"},
                                  absl::Seconds(60)));
  if (result.exit_status == 77 || result.exit_status == 127) GTEST_SKIP() << "needs python3-numpy";
  EXPECT_EQ(result.exit_status, 0) << result.output;
}

TEST(NpzWriterTest, ANameThatNoEntryCanHaveIsRefusedBeforeAnythingIsThere) {
  const std::string directory = NewTestDirectory();
  for (const std::string name : {"/etc/passwd", "a/../../b", "a\\b"}) {
    StateDict state;
    state.Set(StateKey::Model(name), ShardedTensor{DType::kUInt8, Shape({1}), {}});
    EXPECT_THAT(WriteNpz(directory + "/x.npz", state, nullptr),
                StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("tensor \"model/"), HasSubstr("is refused"))))
        << name;
  }
  EXPECT_THAT(ListNames(directory), IsEmpty());
}

}  // namespace
}  // namespace fsdp
