// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/batch_loader.h"

#include <fstream>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

TEST(BatchLoaderTest, NumbersSamplesByStepMicroStepRankAndRow) {
  const BatchShape shape = {.batch_size = 5, .seq_len = 8, .grad_accum = 3, .rank = 1, .world_size = 2};
  EXPECT_EQ(shape.SampleIndex(0, 0, 0), 5);
  EXPECT_EQ(shape.SampleIndex(4, 2, 3), ((4 * 3 + 2) * 2 + 1) * 5 + 3);
  EXPECT_EQ(shape.tokens_per_step(), 5 * 8 * 3 * 2);
}

TEST(BatchLoaderTest, EveryWorldSizeSeesTheSameSamplesInAStep) {
  const auto samples = [](int world_size, int grad_accum) {
    std::vector<int64_t> indices;
    for (int a = 0; a < grad_accum; ++a) {
      for (int rank = 0; rank < world_size; ++rank) {
        const BatchShape shape = {2, 8, grad_accum, rank, world_size};
        for (int row = 0; row < 2; ++row) indices.push_back(shape.SampleIndex(7, a, row));
      }
    }
    return indices;
  };
  EXPECT_THAT(samples(4, 1), ElementsAreArray(samples(1, 4)));
  EXPECT_THAT(samples(2, 2), ElementsAreArray(samples(1, 4)));
}

TEST(MicroStepsTest, AGlobalBatchIsCutAmongTheRanksThatThereAre) {
  EXPECT_THAT(MicroStepsOf(512, 8, 16), IsOkAndHolds(4));
  EXPECT_THAT(MicroStepsOf(512, 8, 8), IsOkAndHolds(8));
  EXPECT_THAT(MicroStepsOf(512, 512, 1), IsOkAndHolds(1));
}

TEST(MicroStepsTest, OneThatCannotBeCutIsRefusedWithTheNearestThatCan) {
  EXPECT_THAT(
      MicroStepsOf(500, 8, 6),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "--global_batch=500: expected a multiple of 48, since 6 ranks take --batch_size=8 rows each at a "
               "time: 480 or 528, or another --batch_size"));
  EXPECT_THAT(MicroStepsOf(4, 8, 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at a time: 8, or")));
  EXPECT_THAT(MicroStepsOf(int64_t{1} << 40, 1, 1), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(BatchLoaderTest, PutsRowsAndTheirTargetsOnTheDevice) {
  const std::string path = testing::TempDir() + "/digits.txt";
  std::ofstream(path) << "0123456789";
  ASSERT_OK_AND_ASSIGN(TokenData data, TokenData::FromTextFiles(path));
  const BatchLoader loader(std::move(data),
                           {.batch_size = 2, .seq_len = 3, .grad_accum = 1, .rank = 0, .world_size = 1});
  const std::shared_ptr<Device> device = CreateHostDevice();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, device->CreateStream("test"));
  ASSERT_OK_AND_ASSIGN(BatchSlot slot, loader.NewSlot(*stream));
  for (const int64_t step : {1, 0}) ASSERT_OK(loader.Fill(step, /*micro_step=*/0, slot, *stream));
  const Batch& batch = slot.batch;
  ASSERT_OK(stream->Synchronize());
  EXPECT_EQ(batch.tokens.shape(), Shape({2, 3}));
  EXPECT_EQ(batch.targets.shape(), Shape({6}));
  EXPECT_THAT(std::vector<int32_t>(batch.tokens.data_as<int32_t>(), batch.tokens.data_as<int32_t>() + 6),
              ElementsAre('0', '1', '2', '3', '4', '5'));
  EXPECT_THAT(std::vector<int32_t>(batch.targets.data_as<int32_t>(), batch.targets.data_as<int32_t>() + 6),
              ElementsAre('1', '2', '3', '4', '5', '6'));
}

}  // namespace
}  // namespace fsdp
