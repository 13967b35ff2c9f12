// SPDX-License-Identifier: Apache-2.0
//
// The formats that the conformance tests run on, and the tests' shared helpers. All formats run the same tests, which
// is what makes formats interchangeable; a new format is one more line of FormatsUnderTest. Tests of one format's
// peculiarities, such as the errors of its header, are next to its code.
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
#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {

struct FormatUnderTest {
  std::string name;         // of the instantiation: "SafetensorsDirectory"
  std::string destination;  // the name that is passed to the writer: "model.safetensors"
  FormatTarget target = {};
  std::set<DType> refused = {};  // dtypes that it cannot hold

  // True for a key that it cannot hold, which it refuses or leaves out by name. Null: it holds every key, or, if it is
  // model_only, every one of the model.
  bool (*lacks)(const StateKey& key) = nullptr;

  // Its optimizer state is of parameters that are there and has their shapes; other state is refused by name.
  bool state_is_like_parameters = false;

  int64_t unknown_step = -1;  // that a checkpoint of an unknown step is read with

  // Only for a read-only format: the file of this format inside the output of `target`.
  std::string part = {};
  const FormatDriver* reader = nullptr;  // if it is not the target's

  const FormatDriver& driver() const { return reader != nullptr ? *reader : DriverOf(target); }
  bool is_written() const { return part.empty(); }
  bool model_only() const { return DriverOf(target).traits().model_only; }
  bool holds(const StateKey& key) const {
    return (lacks == nullptr || !lacks(key)) && (!model_only() || key.section == StateKey::Section::kModel);
  }
  bool is_ours() const { return driver().traits().is_ours; }
};

// Each format in each form in which it is written, and the read-only formats.
std::vector<FormatUnderTest> FormatsUnderTest();

// The formats that can be written.
std::vector<FormatUnderTest> WrittenFormatsUnderTest();

// For INSTANTIATE_TEST_SUITE_P.
std::string NameOfFormat(const testing::TestParamInfo<FormatUnderTest>& info);

// All bytes of a file, under the name "", or of each file of a directory; empty when there is nothing.
std::map<std::string, std::string> BytesOf(const std::string& path);

// A format, and an empty directory of the test to write it in.
class FormatTest : public testing::TestWithParam<FormatUnderTest> {
 protected:
  // AwkwardTensors, or a few kilobytes of tensors of several dtypes; only those that the format can hold.
  static std::vector<TestTensor> LargeTensors();
  static std::vector<TestTensor> SmallTensors();

  // The path that the format's writer writes, and the path that the format then reads.
  std::string destination() const { return root_ + "/" + GetParam().destination; }
  std::string path() const { return destination() + GetParam().part; }

  // Writes `state`, without what the format leaves out, pulling from `read`.
  absl::Status Write(const StateDict& state, const PayloadReader& read, const FormatWriteOptions& options = {}) const;

  // Writes texts and these tensors, with elements by MakeElements.
  void MustWrite(const std::vector<TestTensor>& tensors, const FormatWriteOptions& options = {}) const;

  // Opens the written checkpoint with the driver that recognises it.
  absl::StatusOr<std::unique_ptr<TensorSource>> Open() const { return OpenTensorSource(path()); }

  // Opens it, reads every element of every tensor and compares all checksums. OK only if the tensors of `tensors` that
  // are there, with the same dtype and shape, have the right elements.
  absl::Status ReadAll(const std::vector<TestTensor>& tensors) const;

  const std::string root_ = NewTestDirectory();
};

// True for an error code that a damaged or hostile file may cause; false for the codes of faults of this program.
bool IsErrorOfAFile(const absl::Status& status);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONFORMANCE_FORMATS_UNDER_TEST_H_
