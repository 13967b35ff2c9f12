// SPDX-License-Identifier: Apache-2.0
//
// The table of formats: each format recognises its own writer's output and no other writer's.
#include "fsdp/checkpoint/formats/formats.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_file_driver.h"
#include "fsdp/checkpoint/source/safetensors_metadata.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

// The options of one format are not options of another: a mismatch does not compile.
template <typename Target>
concept HasWorldSize = requires(Target target) {
  target.world_size = 2;
};
template <typename Target>
concept HasParity = requires(Target target) {
  target.parity = 1;
};
template <typename Target>
concept HasMaxShardSize = requires(Target target) {
  target.max_shard_size = 1;
};
static_assert(HasWorldSize<Hdf5Target> && HasParity<Hdf5Target> && !HasMaxShardSize<Hdf5Target>);
static_assert(!HasWorldSize<SafetensorsTarget> && !HasParity<SafetensorsTarget> && HasMaxShardSize<SafetensorsTarget>);
static_assert(!HasWorldSize<TorchTarget> && !HasParity<TorchTarget> && !HasMaxShardSize<TorchTarget>);
static_assert(HasWorldSize<DcpTarget> && !HasParity<DcpTarget> && !HasMaxShardSize<DcpTarget>);

FormatContents OneTensor() {
  FormatContents contents;
  ShardedTensor tensor;
  tensor.dtype = DType::kFloat32;
  tensor.shape = {4, 3};
  contents.state.Set(StateKey::Model("w"), tensor);
  return contents;
}

absl::Status ReadZeros(const StateKey&, const Interval& interval, void* out) {
  std::memset(out, 0, interval.size() * sizeof(float));
  return absl::OkStatus();
}

std::vector<const FormatDriver*> Recognisers(const std::string& path) {
  std::vector<const FormatDriver*> drivers;
  const PathProbe probe = ProbePath(path).value();
  for (const Format& format : Formats()) {
    if (format.driver->Recognises(probe).value()) drivers.push_back(format.driver);
  }
  return drivers;
}

class FormatsTest : public testing::Test {
 protected:
  FormatsTest() { fs::create_directories(root_); }

  // Writes one tensor; returns the path.
  std::string Write(const std::string& name, const FormatTarget& target) const {
    const std::string path = root_ + "/" + name;
    const std::unique_ptr<FormatWriter> writer = MakeWriter(target);
    FormatContents contents = OneTensor();
    EXPECT_OK(writer->Fit(contents).status());
    EXPECT_OK(writer->Write(path, contents, ReadZeros, {}));
    EXPECT_EQ(fs::is_directory(path), writer->MakesDirectory(path)) << path;
    return path;
  }

  std::string WriteBytes(const std::string& name, const std::string& bytes) const {
    std::ofstream(root_ + "/" + name, std::ios::binary) << bytes;
    return root_ + "/" + name;
  }

  const std::string root_ = NewTestDirectory();
};

TEST_F(FormatsTest, AFileThatOnlyLooksLikeOneOfASaveIsNotOwned) {
  const FormatDriver& ours = DriverOf(Hdf5Target());
  for (const std::string name : {"rank-00001-of-00002.h5", "rank-00001-of-00002.step-00000003.h5",
                                 "parity-00000-of-00001.bin", "manifest.json", "checkpoint.h5"}) {
    EXPECT_TRUE(ours.OwnsFileName(name)) << name;
  }
  for (const std::string name : {"rank-notes.h5", "rank-1-of-2.h5", "rank-00002-of-00002.h5", "parity-check.bin",
                                 "parity-00001-of-00001.bin", "rank-00001-of-00002.step-3.h5", "manifest.json.bak"}) {
    EXPECT_FALSE(ours.OwnsFileName(name)) << name;
  }
}

TEST_F(FormatsTest, ARootOfStepsIsRecognisedUnlessItIsAnExportToo) {
  Write("step-00000001", Hdf5Target());
  ASSERT_OK_AND_ASSIGN(const FormatDriver* root, FindFormat(root_));
  EXPECT_EQ(root, &CheckpointRootDriver());
  Write("model.safetensors", SafetensorsTarget());
  ASSERT_OK_AND_ASSIGN(const FormatDriver* model, FindFormat(root_));
  EXPECT_EQ(model, &SafetensorsDriver());
}

TEST_F(FormatsTest, ACheckpointWithoutItsManifestIsRecognisedAndSaidToBeDamaged) {
  const std::string path = Write("full", Hdf5Target());
  fs::remove(path + "/manifest.json");
  ASSERT_OK_AND_ASSIGN(const FormatDriver* found, FindFormat(path));
  EXPECT_EQ(found, &CheckpointDriver());
  const auto missing = StatusIs(absl::StatusCode::kDataLoss, HasSubstr("manifest.json is missing in " + path));
  EXPECT_THAT(OpenTensorSource(path), missing);
  EXPECT_THAT(found->Describe(path, {}), missing);
}

TEST_F(FormatsTest, AFileIsRecognisedByItsFirstBytesAndNotByItsName) {
  const std::string header_of_384(std::string("\x80\x01\0\0\0\0\0\0{", 9));  // looks like a pickle for two bytes
  EXPECT_THAT(Recognisers(WriteBytes("a.bin", header_of_384)), testing::ElementsAre(&SafetensorsDriver()));
  EXPECT_THAT(Recognisers(WriteBytes("b.safetensors", "PK\x03\x04....{")), testing::ElementsAre(&TorchDriver()));
  EXPECT_THAT(Recognisers(WriteBytes("c.safetensors", "\x80\x02}q\x01.")), testing::ElementsAre(&TorchDriver()));
  EXPECT_THAT(Recognisers(WriteBytes("d.safetensors", "a text")), testing::ElementsAre(&SafetensorsDriver()));
  EXPECT_THAT(Recognisers(WriteBytes("e.pt", "a text")), IsEmpty());
  // The ninth byte opens JSON, but the first eight are no length: ONNX without a producer, and GGUF.
  for (const auto& [name, head] : {std::pair("onnx", "\x08\x0e:\x9f\x01\n\x86\x01\n\x01"),
                                   {"onnx", "\x08\x0e:\x9f\x81\x02\n\x01{ "},
                                   {"gguf", "GGUF\x03\x01\x01\x01{ "}}) {
    const std::string path = WriteBytes("f.bin", head);
    EXPECT_EQ(Recognisers(path).size(), 1U) << name;
    ASSERT_OK_AND_ASSIGN(const FormatDriver* found, FindFormat(path));
    EXPECT_EQ(found->name(), name);
  }
}

TEST_F(FormatsTest, AnUnknownPathIsNamedWithWhatEachFormatExpects) {
  EXPECT_THAT(FindFormat(root_ + "/none"), StatusIs(absl::StatusCode::kNotFound, EndsWith("/none does not exist")));
  const std::string text = WriteBytes("text", "a text");
  EXPECT_THAT(FindFormat(text),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(text + " is not a checkpoint: expected an HDF5 file, a safetensors file"),
                             HasSubstr("a torch file"))));
  fs::create_directory(root_ + "/empty");
  for (const Format& format : Formats()) {
    const std::string sign(format.driver->traits().in_directory);
    EXPECT_THAT(FindFormat(root_ + "/empty"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(sign)));
  }
}

TEST(FormatTableTest, EveryTargetHasOneLineAndIsFoundByNameAndSuffix) {
  EXPECT_EQ(TargetNames(), "hdf5, safetensors, torch, dcp, npz, gguf, deepspeed or megatron");
  std::vector<int> lines(std::variant_size_v<FormatTarget>);
  for (const Format& format : Formats()) {
    const std::string name = format.driver->name();
    EXPECT_EQ(format.driver->traits().in_directory.empty() && format.driver->traits().file.empty(), false) << name;
    if (!format.target) continue;
    ++lines[format.target->index()];
    EXPECT_EQ(&DriverOf(*format.target), format.driver) << name;
    ASSERT_TRUE(FindTarget(name)) << name;
    EXPECT_EQ(FindTarget(name)->index(), format.target->index()) << name;
    for (const std::string_view suffix : format.driver->traits().suffixes) {
      EXPECT_EQ(DefaultTarget(absl::StrCat("x", std::string(suffix))).index(), format.target->index()) << suffix;
    }
  }
  EXPECT_THAT(lines, Each(1));
  EXPECT_FALSE(FindTarget("hdf5 file"));  // read-only
  EXPECT_FALSE(FindTarget("zip"));
  EXPECT_TRUE(std::holds_alternative<Hdf5Target>(DefaultTarget("runs/step-00000001")));
}

TEST(FormatTableTest, AnOptionOutOfItsRangeIsRefusedBeforeAnythingIsWritten) {
  for (const FormatTarget& target : std::vector<FormatTarget>{Hdf5Target{.world_size = 0}, DcpTarget{.world_size = -1},
                                                              SafetensorsTarget{.max_shard_size = 0}}) {
    FormatContents contents = OneTensor();
    EXPECT_THAT(MakeWriter(target)->Fit(contents),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected ")));
  }
}

TEST(FormatTableTest, SafetensorsLeavesOutWhatIsNoModelTensorAndNamesIt) {
  FormatContents contents = OneTensor();
  contents.state.Set(StateKey::Extra("position"), std::string("17"));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> notes, MakeWriter(SafetensorsTarget())->Fit(contents));
  EXPECT_THAT(notes, testing::ElementsAre(HasSubstr("1 extra value is left out")));
  EXPECT_EQ(contents.state.entries().size(), 1u);
  FormatContents ours = OneTensor();
  ours.metadata = {{"author", "someone"}};
  EXPECT_THAT(MakeWriter(TorchTarget())->Fit(ours).value(),
              testing::ElementsAre(HasSubstr("__metadata__ is left out")));
  EXPECT_THAT(MakeWriter(Hdf5Target())->Fit(ours).value(), IsEmpty());
  EXPECT_EQ(ours.state.entries().size(), 2u);
  // From ours it is left out like from the file itself.
  EXPECT_THAT(MakeWriter(TorchTarget())->Fit(ours).value(),
              testing::ElementsAre(HasSubstr("__metadata__ is left out")));
  EXPECT_EQ(ours.state.entries().size(), 1u);
  // What is no plain state dict anyway keeps it.
  contents.state.Set(StateKey::Extra("position"), std::string("17"));
  KeepSafetensorsMetadata({{"author", "someone"}}, contents.state);
  EXPECT_THAT(MakeWriter(TorchTarget())->Fit(contents).value(), IsEmpty());
  EXPECT_EQ(contents.state.entries().size(), 3u);
}

// A checkpoint that claims tensors of an exabyte each, as views, stacks and sparse files can.
class HugeSource final : public TensorSource {
 public:
  explicit HugeSource(int tensors) {
    ShardedTensor tensor;
    tensor.dtype = DType::kUInt8;
    tensor.shape = {(int64_t{1} << 60) - 1};
    for (int i = 0; i < tensors; ++i) contents_.Set(StateKey::Model(absl::StrCat("w", i)), tensor);
  }
  const FormatTraits& traits() const override { return traits_; }
  const StateDict& contents() const override { return contents_; }
  int64_t step() const override { return -1; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::vector<std::string> files() const override { return {}; }
  absl::Status Read(const StateKey&, const Interval&, void*) const override { return absl::UnimplementedError("no"); }

 private:
  const FormatTraits traits_ = {.name = "huge"};
  StateDict contents_;
  const std::map<std::string, std::string> metadata_;
};

class HugeDriver final : public FormatDriver {
 public:
  explicit HugeDriver(int tensors) : FormatDriver({.name = "huge"}), tensors_(tensors) {}
  absl::StatusOr<bool> Recognises(const PathProbe&) const override { return true; }
  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string&, const TensorSourceOptions&) const override {
    return std::make_unique<HugeSource>(tensors_);
  }

 private:
  const int tensors_;
};

TEST(FormatTableTest, TensorsWhoseSizesOverflowASumAreRefused) {
  EXPECT_OK(HugeDriver(1).OpenChecked("path", {}));
  const auto is_refused = StatusIs(absl::StatusCode::kDataLoss,
                                   AllOf(HasSubstr("path"), HasSubstr("w1"), HasSubstr("have more than 2^60 bytes")));
  EXPECT_THAT(HugeDriver(9).OpenChecked("path", {}), is_refused);
  EXPECT_THAT(HugeDriver(9).Describe("path", {}), is_refused);
}

}  // namespace
}  // namespace fsdp
