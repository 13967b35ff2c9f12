// SPDX-License-Identifier: Apache-2.0
//
// The formats that the conformance tests of checkpoint formats run on, and what the tests share. The same tests run on
// every format, which is what makes formats interchangeable; a new format is one more line of FormatsUnderTest. What is
// special about a format, such as the errors of its header, is tested beside its code.
#ifndef FSDP_CHECKPOINT_CONFORMANCE_FORMATS_UNDER_TEST_H_
#define FSDP_CHECKPOINT_CONFORMANCE_FORMATS_UNDER_TEST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/test_state.h"
#include "gtest/gtest.h"

namespace fsdp {

struct FormatUnderTest {
  std::string name;         // of the instantiation: "SafetensorsDirectory"
  std::string destination;  // the name that the writer is given: "model.safetensors"
  FormatTarget target = {};
  std::set<DType> refused = {};  // dtypes that it cannot hold

  // Of a format that is only read: the file of what `target` makes that has this format, and its driver.
  std::string part = {};
  const FormatDriver* reader = nullptr;

  const FormatDriver& driver() const { return reader != nullptr ? *reader : DriverOf(target); }
  bool is_written() const { return reader == nullptr; }
  bool model_only() const { return DriverOf(target).traits().model_only; }
  bool is_ours() const { return driver().traits().is_ours; }
};

// Each format in each of the forms that it is written in, and those that are only read.
std::vector<FormatUnderTest> FormatsUnderTest();

// Those that are written.
std::vector<FormatUnderTest> WrittenFormatsUnderTest();

// For INSTANTIATE_TEST_SUITE_P.
std::string NameOfFormat(const testing::TestParamInfo<FormatUnderTest>& info);

// All bytes of a file, under the name "", or of each file of a directory; empty when there is nothing.
std::map<std::string, std::string> BytesOf(const std::string& path);

// A format, and an empty directory of the test to write it in.
class FormatTest : public testing::TestWithParam<FormatUnderTest> {
 protected:
  // Of AwkwardTensors, or a few kilobytes of tensors of several dtypes; those that the format can hold.
  static std::vector<TestTensor> LargeTensors();
  static std::vector<TestTensor> SmallTensors();

  // Where the format's writer writes, and what the format then reads.
  std::string destination() const { return root_ + "/" + GetParam().destination; }
  std::string path() const { return destination() + GetParam().part; }

  // Writes `state`, without what the format leaves out, pulling from `read`.
  absl::Status Write(const StateDict& state, const PayloadReader& read, const FormatWriteOptions& options = {}) const;

  // Writes these tensors, whose elements are those of MakeElements, and texts.
  void MustWrite(const std::vector<TestTensor>& tensors, const FormatWriteOptions& options = {}) const;

  // Opens what was written by the driver that recognises it.
  absl::StatusOr<std::unique_ptr<TensorSource>> Open() const { return OpenTensorSource(path()); }

  // Opens it, reads every element of every tensor and compares all checksums. OK only if the tensors of `tensors` that
  // are there, with the same dtype and shape, have the right elements.
  absl::Status ReadAll(const std::vector<TestTensor>& tensors) const;

  const std::string root_ = NewTestDirectory();
};

// True for the code of an error that a damaged or hostile file may have: no code of a fault of this program.
bool IsErrorOfAFile(const absl::Status& status);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONFORMANCE_FORMATS_UNDER_TEST_H_
