// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/rank_file_names.h"

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(RankFileNamesTest, OneNumberThatCountsFromZeroNamesTheRank) {
  EXPECT_THAT(RankFileNames({"rank1.pt", "rank0.pt"}), ElementsAre("rank0.pt", "rank1.pt"));
  EXPECT_THAT(RankFileNames({"consolidated.00.pth", "consolidated.01.pth"}), SizeIs(2));
  EXPECT_THAT(RankFileNames({"optim_rank1_of_2.pt", "optim_rank0_of_2.pt"}),
              ElementsAre("optim_rank0_of_2.pt", "optim_rank1_of_2.pt"));
  EXPECT_THAT(RankFileNames({"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}), SizeIs(2));
  std::vector<std::string> eleven;
  for (int i = 10; i >= 0; --i) eleven.push_back(absl::StrCat("r", i, ".bin"));
  EXPECT_THAT(RankFileNames(eleven).at(10), "r10.bin");
}

TEST(RankFileNamesTest, OtherNamesAreFilesOfTheirOwn) {
  for (const std::vector<std::string>& names :
       std::vector<std::vector<std::string>>{{"epoch_0.pt", "epoch_1.pt"},
                                             {"checkpoint-0.pt", "checkpoint-1.pt"},
                                             {"Epoch=0.pth", "Epoch=1.pth"},
                                             {"model.step0.bin", "model.step1.bin"},
                                             {"rank0.pt"},
                                             {"rank1.pt", "rank2.pt"},
                                             {"rank0.pt", "rank2.pt"},
                                             {"rank0_of_3.pt", "rank1_of_3.pt"},
                                             {"rank0.pt", "rank1.pt", "scheduler.pt"},
                                             {"rank0.pt", "rank00.pt"},
                                             {"a0b0.pt", "a1b1.pt"},
                                             {"run20250101_0.pt", "run20250101_1.pt"},
                                             {}}) {
    EXPECT_THAT(RankFileNames(names), IsEmpty()) << testing::PrintToString(names);
  }
}

std::string DirectoryOf(const std::vector<std::string>& names) {
  std::string directory = NewTestDirectory();
  for (const std::string& name : names) WriteAll(absl::StrCat(directory, "/", name), "x");
  return directory;
}

TEST(PartNoteTest, APartByItsNumberSaysWhichOfHowMany) {
  for (const char* name : {"model-00002-of-00003.safetensors", "pytorch_model-00002-of-00003.bin",
                           "diffusion_pytorch_model-00002-of-00003.fp16.safetensors"}) {
    EXPECT_THAT(PartNote(absl::StrCat("m/", name)), HasSubstr("part 2 of 3 of a model: give the directory, m,"));
  }
  EXPECT_THAT(PartNote("m/model-00001-of-00001.safetensors"), IsEmpty());
}

TEST(PartNoteTest, AFileAmongFilesOfRanksNamesTheOthers) {
  const std::string directory =
      DirectoryOf({"model-0.safetensors", "model-1.safetensors", "optim-0.pt", "config.json"});
  EXPECT_THAT(PartNote(directory + "/model-1.safetensors"),
              HasSubstr("differs from model-0.safetensors beside it in a number"));
  EXPECT_THAT(PartNote(directory + "/optim-0.pt"), IsEmpty());
  EXPECT_THAT(PartNote(DirectoryOf({"epoch_0.pt", "epoch_1.pt"}) + "/epoch_0.pt"), IsEmpty());
  EXPECT_THAT(PartNote(DirectoryOf({"model.pt"}) + "/model.pt"), IsEmpty());
}

}  // namespace
}  // namespace fsdp
