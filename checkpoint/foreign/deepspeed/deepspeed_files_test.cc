// SPDX-License-Identifier: Apache-2.0
//
// DeepSpeed's own files in places where they do not belong, and directories without some of them.
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_source.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_source.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kGolden = "checkpoint/foreign/deepspeed/testdata/";

absl::Status StatusOf(const std::string& path) { return OpenDeepSpeedSource(path).status(); }

// A copy of a golden checkpoint.
std::string Copy(const std::string& name) {
  const std::string copy = NewTestDirectory() + "/" + fs::path(name).filename().string();
  fs::copy(kGolden + name, copy, fs::copy_options::recursive);
  return copy;
}

TEST(DeepSpeedFilesTest, AFileUnderAnotherNameIsRefused) {
  const std::string tag = Copy("z3_w2_bf16/global_step3");
  const std::string a = tag + "/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt";
  const std::string b = tag + "/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
  fs::rename(a, tag + "/c");
  fs::rename(b, a);
  fs::rename(tag + "/c", b);
  EXPECT_THAT(StatusOf(tag), StatusIs(absl::StatusCode::kDataLoss,
                                      HasSubstr("it was saved as \"bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt\"")));
}

TEST(DeepSpeedFilesTest, FilesOfTwoSavesInOneDirectoryAreRefused) {
  const std::string tag = Copy("z1_w2_fp32/global_step3");
  fs::copy(tag + "/zero_pp_rank_1_mp_rank_00_optim_states.pt", tag + "/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
  EXPECT_THAT(StatusOf(tag), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("files of two saves")));
  fs::remove(tag + "/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
  fs::copy(tag + "/mp_rank_00_model_states.pt", tag + "/zero_pp_rank_0_mp_rank_00_model_states.pt");
  EXPECT_THAT(StatusOf(tag), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of two saves")));
}

TEST(DeepSpeedFilesTest, LatestNamesTheCheckpoint) {
  const std::string root = NewTestDirectory();
  fs::copy(kGolden + "z2_w2_bf16", root, fs::copy_options::recursive);
  EXPECT_OK(StatusOf(root));
  for (const char* const latest : {"global_step4", "../global_step3", "."}) {
    WriteAll(root + "/latest", latest);
    EXPECT_THAT(StatusOf(root), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/latest"))) << latest;
  }
  WriteAll(root + "/latest", "");
  EXPECT_THAT(StatusOf(root), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/latest has 0 bytes")));
  WriteAll(root + "/latest", "Entry not found");
  EXPECT_THAT(StatusOf(root), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/latest is a text")));
  // A universal checkpoint replaces only the one that it was made from.
  fs::copy(kGolden + "universal_z2_w2/global_step3_universal", root + "/global_step3_universal",
           fs::copy_options::recursive);
  WriteAll(root + "/latest_universal", "global_step3_universal");
  WriteAll(root + "/latest", "global_step5");
  EXPECT_THAT(StatusOf(root), StatusIs(absl::StatusCode::kNotFound, HasSubstr("names \"global_step5\"")));
  fs::remove(root + "/latest");
  EXPECT_OK(StatusOf(root));
}

TEST(DeepSpeedFilesTest, AUniversalCheckpointMustBeWhole) {
  const std::string name = "universal_z2_w2/global_step3_universal";
  for (const char* const file : {"zero/embed.weight/exp_avg.pt", "zero/embed.weight/step.pt", "zero/norm.bias/fp32.pt",
                                 "mp_rank_00_model_states.pt", "zero/optimizer_state.pt"}) {
    const std::string tag = Copy(name);
    fs::remove(tag + "/" + file);
    EXPECT_THAT(StatusOf(tag), StatusIs(absl::StatusCode::kNotFound, HasSubstr(file))) << file;
  }
  const std::string tag = Copy(name);
  fs::copy(tag + "/zero/norm.bias/exp_avg.pt", tag + "/zero/embed.weight/exp_avg.pt",
           fs::copy_options::overwrite_existing);
  EXPECT_THAT(StatusOf(tag), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has the shape [7], but the parameter")));
  fs::remove_all(tag + "/zero/embed.weight");
  EXPECT_THAT(StatusOf(tag), StatusIs(absl::StatusCode::kNotFound, HasSubstr("zero/embed.weight is missing")));
}

TEST(DeepSpeedFilesTest, AUniversalCheckpointOfZero3WithoutModelFilesSaysThatShapesAreMissing) {
  const std::string tag = Copy("universal_z3_w2/global_step3_universal");
  for (int rank = 0; rank < 2; ++rank) {
    fs::remove(absl::StrCat(tag, "/zero_pp_rank_", rank, "_mp_rank_00_model_states.pt"));
  }
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDeepSpeedSource(tag));
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("the shapes of the parameters"), HasSubstr("param_groups")));
}

// Files that are opened without the others, even under other names.
TEST(DeepSpeedFilesTest, OneFileIsNoModelWithoutAWord) {
  const std::string directory = NewTestDirectory();
  const auto open = [&](const std::string& file) {
    fs::copy(kGolden + file, directory + "/x.pt", fs::copy_options::overwrite_existing);
    return OpenTorchSource(directory + "/x.pt");
  };
  EXPECT_THAT(open("z3_w2_bf16/global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("such as \"scale\" have no elements")));
  EXPECT_THAT(open("z2_w2_bf16/global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one rank's part")));
  EXPECT_THAT(open("z1_w2_bf16_optimizer/global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one rank's part")));
  ASSERT_OK_AND_ASSIGN(const auto source, open("z2_w2_bf16/global_step3/mp_rank_00_model_states.pt"));
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("the float32 parameters and the optimizer's state")));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("embed.weight"))->dtype, DType::kBFloat16);
}

}  // namespace
}  // namespace fsdp
