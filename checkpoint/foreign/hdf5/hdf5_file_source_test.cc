// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/hdf5/hdf5_file_source.h"

#include <filesystem>
#include <memory>
#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/diff.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Write(const StateDict& state, StateDictType type) {
  const std::string path = NewTestDirectory() + "/checkpoint";
  CheckpointDirectoryOptions options;
  options.type = type;
  options.world_size = 2;
  EXPECT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), options));
  return path;
}

TEST(Hdf5FileSourceTest, ACheckpointFileAloneHasEveryValue) {
  const std::string path = Write(FullState(AwkwardTensors()), StateDictType::kFull);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, OpenTensorSource(path));
  const std::string alone = NewTestDirectory() + "/sent.h5";
  std::filesystem::copy(path + "/checkpoint.h5", alone);
  ASSERT_OK_AND_ASSIGN(const auto file, OpenTensorSource(alone));
  EXPECT_EQ(file->format(), "hdf5 file");
  EXPECT_EQ(file->step(), 0);  // an attribute of its root
  ASSERT_OK_AND_ASSIGN(const DiffReport report, DiffCheckpoints(*checkpoint, *file, {}));
  EXPECT_TRUE(report.equal()) << testing::PrintToString(report.structure) << testing::PrintToString(report.only_in_a);
}

TEST(Hdf5FileSourceTest, FilesWhoseValuesAreElsewhereAreRefused) {
  const std::string path =
      Write(FullState({{StateKey::Model("wte.weight"), DType::kFloat32, {4}}}), StateDictType::kSharded);
  EXPECT_THAT(OpenHdf5FileSource(path + "/checkpoint.h5"),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("/checkpoint.h5, dataset \"/model/"),
                                                                 HasSubstr("its values are in rank files"))));
  EXPECT_THAT(OpenHdf5FileSource(path + "/rank-00000-of-00002.h5"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("this is a rank file")));
}

TEST(Hdf5FileSourceTest, ABoolThatIsNoneIsNamed) {
  StateDict state = FullState({{StateKey::Model("wte.weight"), DType::kBool, {9}}});
  const std::string path = Write(state, StateDictType::kFull);
  ASSERT_OK_AND_ASSIGN(const SourceDescription description, DescribeHdf5File(path + "/checkpoint.h5"));
  std::string bytes = ReadFile(path + "/checkpoint.h5");
  bytes[description.tensors[0].intervals[0].offset + 3] = 2;
  WriteAll(path + "/checkpoint.h5", bytes);
  ASSERT_OK_AND_ASSIGN(const auto source, OpenHdf5FileSource(path + "/checkpoint.h5"));
  char out[9];
  EXPECT_THAT(source->Read(StateKey::Model("wte.weight"), {2, 9}, out),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("element 3 is 2, expected 0 or 1")));
  EXPECT_OK(source->Read(StateKey::Model("wte.weight"), {4, 9}, out));
}

}  // namespace
}  // namespace fsdp
