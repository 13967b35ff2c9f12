// SPDX-License-Identifier: Apache-2.0
//
// The rules of CheckOutput, one by one; tools/commands/ckpt_source_safety_test.cc and
// tests/train_gpt_source_safety_test.cc test that the programs call it.
#include "fsdp/checkpoint/formats/output_path.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/zero_checkpoint_testutil.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class OutputPathTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const FormatTarget& target) const {
    WriteZeros(root_ + "/" + name, target, {"w"}, 4);
    return root_ + "/" + name;
  }

  void ExpectRefused(const std::string& output, const InputPaths& inputs, const OutputOptions& options,
                     const std::string& why) const {
    EXPECT_THAT(CheckOutput(output, inputs, options),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(output), HasSubstr(why), HasSubstr("choose another place for the output"))));
  }

  const std::string root_ = fs::canonical(NewTestDirectory());
};

TEST_F(OutputPathTest, WhatIsReadIsNoOutputNorIsAnythingInItOrAroundIt) {
  const std::string model = Write("around/hf", SafetensorsTarget());
  InputPaths inputs;
  AddCheckpoint(model, inputs);
  for (const OutputKind kind :
       {OutputKind::kFile, OutputKind::kDirectory, OutputKind::kCheckpoint, OutputKind::kRoot}) {
    ExpectRefused(model, inputs, {.kind = kind}, "which is read");
    ExpectRefused(model + "/none/deep", inputs, {.kind = kind}, "is inside " + model + ", which is read");
  }
  ExpectRefused(root_ + "/around", inputs, {.kind = OutputKind::kDirectory}, "would be replaced, and with it " + model);
  ExpectRefused(root_ + "/around", inputs, {.kind = OutputKind::kCheckpoint},
                "would be replaced, and with it " + model);
  EXPECT_OK(CheckOutput(root_ + "/around", inputs, {.kind = OutputKind::kRoot}));  // only added to
  EXPECT_OK(CheckOutput(root_ + "/around/beside", inputs, {.kind = OutputKind::kDirectory}));
}

// A program that opens the path to write creates the file at the end of the links; one that renames replaces the first
// link.
TEST_F(OutputPathTest, ALinkMayNeitherLeadIntoACheckpointNorLieInOne) {
  const std::string ours = Write("ours", Hdf5Target());
  fs::create_symlink("ours/none", root_ + "/into");
  fs::create_symlink("../elsewhere", ours + "/out_of");
  ExpectRefused(root_ + "/into", {}, {}, "is inside " + ours + ", which is a checkpoint (hdf5)");
  ExpectRefused(ours + "/out_of", {}, {}, "is inside " + ours + ", which is a checkpoint (hdf5)");
  EXPECT_OK(CheckOutput(root_ + "/elsewhere", {}));
  WriteAll(root_ + "/elsewhere", "x");  // with a target that also exists
  ExpectRefused(ours + "/out_of", {}, {}, "is inside " + ours + ", which is a checkpoint (hdf5)");
  fs::create_symlink(ours + "/out_of", root_ + "/over");
  ExpectRefused(root_ + "/over", {}, {}, "is inside " + ours + ", which is a checkpoint (hdf5)");
  fs::create_symlink("elsewhere", root_ + "/plain");
  EXPECT_OK(CheckOutput(root_ + "/plain", {}));
}

TEST_F(OutputPathTest, ADirectoryIsACheckpointByWhatIsInIt) {
  fs::create_directories(root_ + "/around");
  EXPECT_OK(CheckOutput(root_ + "/around/x", {}));
  const std::string alone = Write("alone", SafetensorsTarget());  // a file inside it
  EXPECT_OK(CheckOutput(alone + "/x", {}));
  WriteAll(alone + "/config.json", "{}");
  ExpectRefused(alone + "/x", {}, {}, "is a checkpoint (safetensors)");
  EXPECT_OK(CheckOutput(alone + "/x", {}, {.own_directory = alone + "/."}));
}

TEST_F(OutputPathTest, OnlyAnothersCheckpointThatHoldsTheOutputItselfForbidsIt) {
  const std::string home = Write("home", SafetensorsTarget());
  WriteAll(home + "/config.json", "{}");
  const std::string dcp = Write("dcp", DcpTarget());
  const std::string ours = Write("ours", Hdf5Target());
  for (const std::string& model : {home, dcp, ours}) {
    ExpectRefused(model + "/x.pt", {}, {}, "is inside " + model + ", which is a checkpoint");
    ExpectRefused(model + "/runs", {}, {.kind = OutputKind::kRoot}, "is inside " + model + ", which is a checkpoint");
  }
  for (const std::string& model : {home, dcp}) EXPECT_OK(CheckOutput(model + "/sub/deep/x.pt", {}));
  ExpectRefused(ours + "/sub/deep/x.pt", {}, {}, "is inside " + ours + ", which is a checkpoint (hdf5)");
}

TEST_F(OutputPathTest, ALogMayLieBesideAModelUnderANameThatIsNotTheModels) {
  const std::string hf = Write("hf", SafetensorsTarget());
  WriteAll(hf + "/config.json", "{}");
  const std::string dcp = Write("dcp", DcpTarget());
  const OutputOptions file = {.may_lie_beside_models = true};
  const OutputOptions root = {.kind = OutputKind::kRoot, .may_lie_beside_models = true};
  for (const std::string& model : {hf, dcp}) {
    ExpectRefused(model + "/metrics.jsonl", {}, {}, "is a checkpoint");
    EXPECT_OK(CheckOutput(model + "/metrics.jsonl", {}, file));
    EXPECT_OK(CheckOutput(model + "/runs/model.safetensors", {}, file));
    EXPECT_OK(CheckOutput(model, {}, root));
    EXPECT_OK(CheckOutput(model + "/runs", {}, root));
    InputPaths inputs;
    AddCheckpoint(model, inputs);
    ExpectRefused(model + "/runs", inputs, root, "which is read");
  }
  for (const std::string& path :
       {hf + "/config.json", hf + "/model-00001-of-00002.safetensors", dcp + "/.metadata", dcp + "/__9_0.distcp"}) {
    ExpectRefused(path, {}, file, "is a file of the checkpoint");
  }
  ExpectRefused(Write("ours", Hdf5Target()) + "/metrics.jsonl", {}, file, "is a checkpoint (hdf5)");
}

// By their names, as far as these suffice: what is in the files matters only to metadata.pkl.
TEST_F(OutputPathTest, NothingIsAddedToATrainersCheckpointNorToTheDirectoriesInIt) {
  const auto make = [&](const std::string& name) {
    fs::create_directories(fs::path(root_ + "/" + name).parent_path());
    WriteAll(root_ + "/" + name, "x");
  };
  make("deepspeed/latest");
  make("deepspeed/global_step3/mp_rank_00_model_states.pt");
  make("deepspeed/global_step3_universal/zero/optimizer_state.pt");
  make("deepspeed/global_step3_universal/zero/w/fp32.pt");
  make("megatron/latest_checkpointed_iteration.txt");
  make("megatron/iter_0000007/mp_rank_00/model_optim_rng.pt");
  make("orbax/7/_CHECKPOINT_METADATA");
  make("orbax/7/state/_METADATA");
  make("orbax/7/state/d/1f8ca29e");
  make("orbax/7/state/params.w/.zarray");
  fs::copy("checkpoint/foreign/torch_checkpointing/testdata/fsdp2_w2_safetensors/ckpt", root_ + "/items",
           fs::copy_options::recursive);
  for (const std::string directory :
       {"deepspeed/global_step3", "deepspeed/global_step3_universal", "deepspeed/global_step3_universal/zero",
        "deepspeed/global_step3_universal/zero/w", "megatron", "megatron/iter_0000007",
        "megatron/iter_0000007/mp_rank_00", "orbax/7", "orbax/7/state", "orbax/7/state/d", "orbax/7/state/params.w",
        "items", "items/shards"}) {
    ExpectRefused(root_ + "/" + directory + "/x", {}, {}, "to which nothing may be added");
  }
  for (const char* file : {"/deepspeed/metrics.jsonl", "/orbax/metrics.jsonl", "/megatron/runs/metrics.jsonl"}) {
    EXPECT_OK(CheckOutput(root_ + file, {}));
  }
  ExpectRefused(root_ + "/deepspeed/global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt", {},
                {.may_lie_beside_models = true}, "is a file of the checkpoint");
}

TEST_F(OutputPathTest, OtherProgramsFilesOfACommonNameMakeNoCheckpoint) {
  fs::create_directories(root_ + "/page/.metadata");  // as some editors keep it
  WriteAll(root_ + "/page/manifest.json", R"({"name": "a page"})");
  WriteAll(root_ + "/page/checkpoint.h5", "\x89HDF\r\n\x1a\n");
  EXPECT_OK(CheckOutput(root_ + "/page/x", {}));
}

TEST_F(OutputPathTest, FilesThatOnlyDifferInANumberMakeNoCheckpoint) {
  fs::create_directories(root_ + "/epochs");
  for (const char* name : {"/epoch_0.pt", "/epoch_1.pt", "/tok_0.bin", "/tok_1.bin"}) {
    WriteAll(root_ + "/epochs" + name, "x");
  }
  EXPECT_OK(CheckOutput(root_ + "/epochs/epoch_2.pt", {}));
}

TEST_F(OutputPathTest, ACheckpointOfOursIsOneWhileItsManifestOrARecordIsLeft) {
  const std::string ours = Write("ours", Hdf5Target{.type = StateDictType::kSharded, .world_size = 2});
  std::string manifest = ReadFile(ours + "/manifest.json");
  manifest.resize(manifest.size() / 2);
  WriteAll(ours + "/manifest.json", manifest);
  ExpectRefused(ours + "/x", {}, {}, "is a checkpoint (hdf5)");
  fs::remove(ours + "/manifest.json");
  ExpectRefused(ours + "/x", {}, {.own_directory = ours}, "is a checkpoint (hdf5)");
}

TEST_F(OutputPathTest, ANameThatSavesGiveIsTheirs) {
  const std::string step = Write("root/step-00000001", Hdf5Target());
  const std::string next = root_ + "/root/step-00000002";
  ExpectRefused(next, {}, {.kind = OutputKind::kFile}, "name of a step");
  ExpectRefused(next, {}, {.kind = OutputKind::kDirectory}, "name of a step");
  EXPECT_OK(CheckOutput(next, {}, {.kind = OutputKind::kCheckpoint}));
  EXPECT_OK(CheckOutput(root_ + "/step-00000002", {}, {.kind = OutputKind::kFile}));  // no steps in this directory
  EXPECT_OK(CheckOutput(root_ + "/root", {}, {.kind = OutputKind::kRoot}));
  ExpectRefused(step, {}, {.kind = OutputKind::kRoot}, "is a checkpoint (hdf5)");
  ExpectRefused(root_ + "/.step-00000002.tmp-0123456789abcdef/x", {}, {}, "what a save or a deletion");
}

TEST_F(OutputPathTest, WhatAWriterWouldSweepAwayIsNotRead) {
  const std::string staged = Write("root/.step-00000002.tmp-0123456789abcdef", Hdf5Target());
  WriteAll(root_ + "/.x.pt.new", "x");
  InputPaths inputs;
  AddCheckpoint(staged, inputs);
  inputs.Add(root_ + "/.x.pt.new");
  ExpectRefused(root_ + "/root", inputs, {.kind = OutputKind::kRoot}, "would remove " + staged);
  ExpectRefused(root_ + "/root/step-00000002", inputs, {.kind = OutputKind::kCheckpoint}, "would remove " + staged);
  EXPECT_OK(CheckOutput(root_ + "/root/step-00000003", inputs, {.kind = OutputKind::kCheckpoint}));
  ExpectRefused(root_ + "/x.pt", inputs, {.kind = OutputKind::kFile}, "would remove " + root_ + "/.x.pt.new");
}

// The other files in a ROOT are not read, and may be overwritten.
TEST_F(OutputPathTest, OfARootTheStepsAreRead) {
  Write("root/step-00000001", Hdf5Target());
  WriteAll(root_ + "/root/log.txt", "x");
  InputPaths inputs;
  AddCheckpoint(root_ + "/root", inputs);
  EXPECT_OK(CheckOutput(root_ + "/root/log.txt", inputs));
  EXPECT_OK(CheckOutput(root_ + "/root/export", inputs, {.kind = OutputKind::kCheckpoint}));
  ExpectRefused(root_ + "/root/step-00000001", inputs, {.kind = OutputKind::kCheckpoint}, "which is read");
  ExpectRefused(root_ + "/root", inputs, {.kind = OutputKind::kDirectory}, "would be replaced");
}

TEST_F(OutputPathTest, ARootThatIsExportedToStaysARoot) {
  Write("root/step-00000001", Hdf5Target());
  Write("root/model.safetensors", SafetensorsTarget());
  WriteAll(root_ + "/root/config.json", "{}");
  EXPECT_OK(CheckOutput(root_ + "/root/metrics.jsonl", {}));
  EXPECT_OK(CheckOutput(root_ + "/root", {}, {.kind = OutputKind::kRoot}));
}

TEST_F(OutputPathTest, NothingInARootHidesItsSteps) {
  Write("root/step-00000001", Hdf5Target());
  fs::create_directories(root_ + "/new");
  for (const std::string& root : {root_ + "/root", root_ + "/new"}) {
    const OutputOptions file = {.root = root, .may_lie_beside_models = true};
    for (const char* name : {"/model.safetensors", "/pytorch_model.bin", "/.metadata",
                             "/model-00001-of-00002.safetensors", "/manifest.json", "/mp_rank_00_model_states.pt",
                             "/latest_checkpointed_iteration.txt", "/metadata.pkl", "/_METADATA", "/manifest.ocdbt"}) {
      ExpectRefused(root + name, {}, file, "would make " + root + " a checkpoint");
    }
    ExpectRefused(root, {}, {.kind = OutputKind::kDirectory, .root = root}, "is a directory of steps");
    ExpectRefused(root + "/step-00000007", {}, file, "name of a step");
    EXPECT_OK(CheckOutput(root + "/export.safetensors", {}, file));
    EXPECT_OK(CheckOutput(root + "/export/model.safetensors", {}, file));
  }
  ExpectRefused(root_ + "/root/model.safetensors", {}, {}, "would make");  // found by its steps
  EXPECT_OK(CheckOutput(root_ + "/new/model.safetensors", {}));
}

TEST_F(OutputPathTest, ANewRootIsNoModelsDirectory) {
  const std::string hf = Write("hf", SafetensorsTarget());
  WriteAll(hf + "/config.json", "{}");
  for (const std::string& model : {hf, Write("dcp", DcpTarget())}) {
    ExpectRefused(model, {}, {.kind = OutputKind::kRoot, .root = model, .may_lie_beside_models = true},
                  "which readers would get instead of the steps");
  }
}

// A GGUF file may have any name, so its directory is GGUF's only if it is no ROOT.
TEST_F(OutputPathTest, AnExportOfAnyNameAmongStepsLeavesThemVisible) {
  const std::string step = Write("root/step-00000001", Hdf5Target());
  Write("root/export.gguf", GgufTarget());
  ASSERT_OK_AND_ASSIGN(const FormatDriver* const driver, FindFormat(root_ + "/root"));
  ASSERT_OK_AND_ASSIGN(const std::string resolved, driver->Resolve(root_ + "/root"));
  EXPECT_EQ(resolved, step);
}

// One file names a model of several.
TEST_F(OutputPathTest, TheOtherPartsOfASourceAreRead) {
  fs::copy("checkpoint/foreign/gguf/testdata/split", root_ + "/split");
  InputPaths inputs;
  AddCheckpoint(root_ + "/split/model-00001-of-00003.gguf", inputs);
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(root_ + "/split/model-00001-of-00003.gguf"));
  AddSource(*source, inputs);
  ExpectRefused(root_ + "/split/model-00002-of-00003.gguf", inputs, {}, "which is read");
  EXPECT_OK(CheckOutput(root_ + "/split/other.gguf", inputs));
}

TEST_F(OutputPathTest, WhatKeepsNoBytesIsNoOutput) {
  ASSERT_EQ(mkfifo((root_ + "/fifo").c_str(), 0600), 0);
  fs::create_symlink("fifo", root_ + "/link");
  for (const OutputKind kind :
       {OutputKind::kFile, OutputKind::kDirectory, OutputKind::kCheckpoint, OutputKind::kRoot}) {
    ExpectRefused(root_ + "/fifo", {}, {.kind = kind}, "is a FIFO, expected a file");
    ExpectRefused(root_ + "/link", {}, {.kind = kind}, "is a FIFO, expected a file");
    ExpectRefused("/dev/null", {}, {.kind = kind}, "is a device, expected a file");
    ExpectRefused("s3://bucket/run", {}, {.kind = kind}, "is a URL, expected a path");
  }
}

}  // namespace
}  // namespace fsdp
