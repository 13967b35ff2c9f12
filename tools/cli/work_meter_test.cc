// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/cli/work_meter.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// A number of pieces of work, one after the other, each of that many bytes and tensors.
struct Pieces {
  int64_t count = 0;
  int64_t bytes = 0;
  int64_t tensors = 0;
};

struct Machine {
  double bytes_per_second = 0.8e9;
  absl::Duration of_tensor = absl::Microseconds(5);
};

// Work with a fake clock: its true duration, and what the meter says of it.
class FakeWork {
 public:
  FakeWork(const Machine& machine, const std::vector<Pieces>& all) : machine_(machine), all_(all) {
    for (const Pieces& pieces : all_) {
      bytes_ += pieces.count * pieces.bytes;
      tensors_ += pieces.count * pieces.tensors;
      true_ += static_cast<double>(pieces.count) * TimeOf(pieces);
    }
  }

  absl::Duration duration() const { return true_; }

  // The first time left that the meter says, divided by the true one at that moment.
  double FirstEstimateOfTruth() const {
    WorkMeter meter;
    const absl::Time start = absl::UnixEpoch() + absl::Hours(1);
    absl::Time now = start;
    int64_t bytes = 0;
    int64_t tensors = 0;
    meter.SetBytes(0, bytes_, now);
    for (const Pieces& pieces : all_) {
      for (int64_t i = 0; i < pieces.count; ++i) {
        now += TimeOf(pieces);
        bytes += pieces.bytes;
        tensors += pieces.tensors;
        meter.SetTensors(tensors, tensors_, now);
        meter.SetBytes(bytes, bytes_, now);
        if (const auto left = meter.Measured(now).TimeLeft()) return absl::FDivDuration(*left, true_ - (now - start));
      }
    }
    return 0;
  }

 private:
  absl::Duration TimeOf(const Pieces& pieces) const {
    return absl::Seconds(static_cast<double>(pieces.bytes) / machine_.bytes_per_second) +
           static_cast<double>(pieces.tensors) * machine_.of_tensor;
  }

  const Machine machine_;
  const std::vector<Pieces> all_;
  int64_t bytes_ = 0;
  int64_t tensors_ = 0;
  absl::Duration true_;
};

// A model's matrices and its small tensors: blocks of 4 MiB, and hundreds of small ones at a time.
constexpr Pieces kMatrices = {1000, int64_t{4} << 20, 0};
constexpr Pieces kSmall = {1200, 256 * 373, 256};
constexpr Pieces kNames = {1200, 0, 256};  // laid out before, or described after, they are written

// Regression: 300,000 tensors after a few large ones were reported to take a tenth of a second.
TEST(WorkMeterTest, TheFirstEstimateIsTrueWithinAFactorOfTwoForAnyMixOfTensors) {
  const std::vector<std::vector<Pieces>> mixes = {
      {kMatrices},
      {kSmall},
      {kSmall, kSmall, kSmall, kSmall},
      {kMatrices, kSmall},
      {kSmall, kMatrices},
      {kMatrices, kSmall, kSmall, kSmall, kSmall, kSmall, kSmall},
      {kNames, kNames, kNames, kSmall, kNames},             // as HDF5
      {kNames, kNames, kNames, kMatrices, kSmall, kNames},  // the same of both kinds
      {kMatrices, kMatrices, kNames},
  };
  for (const double bytes_per_second : {0.5e9, 0.8e9, 1.5e9}) {
    for (size_t i = 0; i < mixes.size(); ++i) {
      const FakeWork work({.bytes_per_second = bytes_per_second}, mixes[i]);
      if (work.duration() < absl::Seconds(1.5)) continue;  // there is hardly an estimate
      const double ratio = work.FirstEstimateOfTruth();
      EXPECT_GT(ratio, 0.5) << "mix " << i << " at " << bytes_per_second;
      EXPECT_LT(ratio, 2.0) << "mix " << i << " at " << bytes_per_second;
    }
  }
}

// Of work of one kind nothing has to be known about the machine.
TEST(WorkMeterTest, TheEstimateOfEqualPiecesIsExactOnAnyMachine) {
  for (const Pieces& pieces : {kMatrices, kSmall, kNames}) {
    const FakeWork work({.bytes_per_second = 1e8, .of_tensor = absl::Microseconds(50)}, {pieces});
    EXPECT_NEAR(work.FirstEstimateOfTruth(), 1.0, 0.01);
  }
}

TEST(WorkMeterTest, WorkBeforeTheFirstCallIsNotMeasured) {
  WorkMeter meter;
  const absl::Time start = absl::UnixEpoch();
  meter.SetBytes(3'000'000, 9'000'000, start);
  meter.SetBytes(5'000'000, 9'000'000, start + absl::Seconds(2));
  EXPECT_EQ(meter.Measured(start + absl::Seconds(2)).TimeLeft(), absl::Seconds(4));
}

TEST(WorkMeterTest, WorkIsDoneWhenBytesAndTensorsAre) {
  const MeasuredWork bytes_only = {10, 10, 10, absl::Seconds(1)};
  EXPECT_TRUE(bytes_only.is_done());
  EXPECT_EQ(bytes_only.fraction(), 1.0);
  const MeasuredWork names_left = {4096, 4096, 4096, absl::Seconds(2), 1, 3, 1};
  EXPECT_FALSE(names_left.is_done());
  EXPECT_EQ(names_left.fraction(), 0.5);
  EXPECT_EQ(names_left.TimeLeft(), absl::Seconds(2));
}

TEST(WorkMeterTest, NothingIsSaidOfTheFirstSecondOrBeforeTheFirstByte) {
  EXPECT_FALSE((MeasuredWork{1, 9, 1, absl::Milliseconds(999)}).TimeLeft().has_value());
  EXPECT_FALSE((MeasuredWork{0, 9, 0, absl::Seconds(9)}).TimeLeft().has_value());
  EXPECT_FALSE((MeasuredWork{1, int64_t{1} << 62, 1, absl::Hours(1)}).TimeLeft().has_value());
}

}  // namespace
}  // namespace fsdp
