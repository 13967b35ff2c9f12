// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/ops.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/each_target.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;

constexpr DType kFloats[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16};
// Around one vector of every target, and more than one tile.
constexpr int64_t kLengths[] = {0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 64, 1000, 1029};

class OpsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(stream_, device_->CreateStream("ops")); }

  // `values` as a tensor of `dtype` that starts `offset` elements into its buffer.
  Tensor Make(DType dtype, const std::vector<double>& values, int64_t offset = 0) {
    const auto numel = static_cast<int64_t>(values.size());
    absl::StatusOr<Tensor> whole = Tensor::Empty(*device_, dtype, {offset + numel});
    EXPECT_OK(whole);
    const Tensor t = whole->Slice({offset, offset + numel});
    EXPECT_OK(Convert(DType::kFloat64, values.data(), dtype, t.data(), numel));
    return t;
  }

  std::vector<double> Read(const Tensor& t) {
    EXPECT_OK(stream_->Synchronize());
    std::vector<double> values(t.numel());
    EXPECT_OK(Convert(t.dtype(), t.data(), DType::kFloat64, values.data(), t.numel()));
    return values;
  }

  const TensorOps& ops() { return device_->ops(); }

  std::shared_ptr<Device> device_ = CreateHostDevice();
  std::unique_ptr<Stream> stream_;
};

// `value` after it was stored as `dtype`.
double Rounded(double value, DType dtype) {
  char bytes[8];
  double back;
  EXPECT_OK(Convert(DType::kFloat64, &value, dtype, bytes, 1));
  EXPECT_OK(Convert(dtype, bytes, DType::kFloat64, &back, 1));
  return back;
}

// The sum, product or quotient in the type that ops.h specifies.
bool InFloat64(DType a, DType b) { return a == DType::kFloat64 || b == DType::kFloat64; }

std::vector<double> Ramp(int64_t numel, double scale) {
  std::vector<double> values(numel);
  for (int64_t i = 0; i < numel; ++i) values[i] = std::sin(static_cast<double>(i)) * scale;
  return values;
}

TEST_F(OpsTest, ZeroClearsEveryByte) {
  for (DType dtype : AllDTypes()) {
    if (dtype == DType::kFloat8E8M0FNU || IsPacked(dtype)) continue;  // has no zero, or no single numbers
    const Tensor t = Make(dtype, std::vector<double>(9, 1.0));
    ops().Zero(t, *stream_);
    EXPECT_THAT(Read(t), testing::Each(0.0));
    const std::string bytes(static_cast<const char*>(t.data()), t.nbytes());
    EXPECT_EQ(bytes, std::string(t.nbytes(), '\0'));
  }
}

TEST_F(OpsTest, CastDivideRoundsOnce) {
  ForEachTarget([&] {
    for (DType from : kFloats) {
      for (DType to : kFloats) {
        for (double divisor : {1.0, 3.0, 8.0}) {
          for (int64_t numel : kLengths) {
            const Tensor source = Make(from, Ramp(numel, 100), 1);
            const Tensor destination = Make(to, std::vector<double>(numel, -1), 3);
            ops().CastDivide(source, destination, divisor, *stream_);
            const std::vector<double> in = Read(source);
            const std::vector<double> out = Read(destination);
            for (int64_t i = 0; i < numel; ++i) {
              const double quotient =
                  InFloat64(from, to) ? in[i] / divisor : static_cast<float>(in[i]) / static_cast<float>(divisor);
              ASSERT_EQ(out[i], Rounded(quotient, to)) << DTypeName(from) << " to " << DTypeName(to) << " at " << i;
            }
          }
        }
      }
    }
  });
}

TEST_F(OpsTest, CastDivideInPlace) {
  for (DType dtype : kFloats) {
    const Tensor t = Make(dtype, {2, 4, -6, 8, 1});
    ops().CastDivide(t, t, 2, *stream_);
    ops().CastDivide(t, t, 1, *stream_);
    EXPECT_THAT(Read(t), ElementsAre(1, 2, -3, 4, 0.5));
  }
}

TEST_F(OpsTest, AccumulateRoundsTheSumOnce) {
  ForEachTarget([&] {
    for (DType from : kFloats) {
      for (DType to : kFloats) {
        for (int64_t numel : kLengths) {
          const Tensor source = Make(from, Ramp(numel, 0.7), 1);
          const Tensor destination = Make(to, Ramp(numel, 3), 1);
          const std::vector<double> before = Read(destination);
          ops().Accumulate(source, destination, *stream_);
          const std::vector<double> in = Read(source);
          const std::vector<double> out = Read(destination);
          for (int64_t i = 0; i < numel; ++i) {
            const double sum =
                InFloat64(from, to) ? in[i] + before[i] : static_cast<float>(in[i]) + static_cast<float>(before[i]);
            ASSERT_EQ(out[i], Rounded(sum, to)) << DTypeName(from) << " to " << DTypeName(to) << " at " << i;
          }
        }
      }
    }
  });
}

TEST_F(OpsTest, AccumulateAddsSmallPartsThatBFloat16Keeps) {
  // 256 + 1 is a tie of bfloat16, 258 is the next number: the sum must not be made in bfloat16 steps.
  const Tensor source = Make(DType::kFloat32, {1, 1.5});
  const Tensor destination = Make(DType::kBFloat16, {256, 256});
  ops().Accumulate(source, destination, *stream_);
  EXPECT_THAT(Read(destination), ElementsAre(256, 258));
}

TEST_F(OpsTest, ScaleByReadsTheFactorInStreamOrder) {
  ForEachTarget([&] {
    for (DType dtype : kFloats) {
      const Tensor factor = Make(DType::kFloat32, {0});
      const Tensor two = Make(DType::kFloat32, {2});
      const Tensor t = Make(dtype, {1, -3, 0.5});
      ops().Accumulate(two, factor, *stream_);
      ops().ScaleBy({t}, factor, *stream_);
      EXPECT_THAT(Read(t), ElementsAre(2, -6, 1));
    }
  });
}

TEST_F(OpsTest, SquaredNormAddsToTheResult) {
  ForEachTarget([&] {
    for (DType dtype : kFloats) {
      const Tensor result = Make(DType::kFloat32, {1});
      ops().AccumulateSquaredNorm({Make(dtype, {3, -4})}, result, *stream_);
      EXPECT_THAT(Read(result), ElementsAre(26));
      for (int64_t numel : kLengths) {
        const Tensor zero = Make(DType::kFloat32, {0});
        ops().AccumulateSquaredNorm({Make(dtype, std::vector<double>(numel, 2), 1)}, zero, *stream_);
        EXPECT_THAT(Read(zero), ElementsAre(4.0 * static_cast<double>(numel)));
      }
    }
  });
}

TEST_F(OpsTest, SquaredNormKeepsSmallPartsOfLongSums) {
  // In float32 the sum would stop growing at 2^24.
  const Tensor ones = Make(DType::kBFloat16, std::vector<double>((1 << 24) + 4, 1));
  const Tensor result = Make(DType::kFloat32, {0});
  ops().AccumulateSquaredNorm({ones}, result, *stream_);
  EXPECT_THAT(Read(result), ElementsAre((1 << 24) + 4));
}

TEST_F(OpsTest, SquaredNormHasTheSameBitsOnEveryTarget) {
  // Float64, because its products are inexact and a fused multiply-add would show.
  const Tensor source = Make(DType::kFloat64, Ramp(100'003, 1.0 / 3));
  std::vector<double> results;
  ForEachTarget([&] {
    const Tensor result = Make(DType::kFloat32, {0});
    ops().AccumulateSquaredNorm({source}, result, *stream_);
    results.push_back(Read(result)[0]);
  });
  EXPECT_THAT(results, testing::Each(results[0]));
}

TEST_F(OpsTest, NaNAndInfinityComeThrough) {
  ForEachTarget([&] {
    for (DType dtype : kFloats) {
      for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        std::vector<double> values(37, 1.0);
        values[35] = bad;
        const Tensor t = Make(dtype, values);
        const Tensor result = Make(DType::kFloat32, {0});
        ops().AccumulateSquaredNorm({t}, result, *stream_);
        EXPECT_EQ(std::isnan(Read(result)[0]), std::isnan(bad));
        EXPECT_FALSE(std::isfinite(Read(result)[0]));
      }
    }
  });
}

TEST_F(OpsTest, CastDivideIntervalsMovesItsIntervalsAndNoOthers) {
  const Tensor source = Make(DType::kFloat32, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  const Tensor destination = Make(DType::kBFloat16, std::vector<double>(7, -1), 1);
  ops().CastDivideIntervals(source, destination, {{7, 0, 2}, {2, 3, 1}, {9, 7, 0}, {0, 4, 2}}, 2, *stream_);
  EXPECT_THAT(Read(destination), ElementsAre(4, 4.5, -1, 1.5, 0.5, 1, -1));
}

TEST_F(OpsTest, AnIntervalOutsideOfItsTensorFailsTheStream) {
  const Tensor source = Make(DType::kFloat32, {1, 2, 3}), destination = Make(DType::kFloat32, {0, 0});
  ops().CastDivideIntervals(source, destination, {{0, 0, 2}, {1, 1, 2}}, 1, *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("cast_divide_intervals: interval 1 goes from 1 to 1, 2 elements; source "
                                            "has 3, destination 2")));
}

TEST_F(OpsTest, CheckFiniteFindsOneBadElementAnywhere) {
  ForEachTarget([&] {
    for (const DType dtype : kFloats) {
      for (const int64_t numel : kLengths) {
        const Tensor found = Make(DType::kFloat32, {0});
        ops().CheckFinite({Make(dtype, std::vector<double>(numel, 3e4), 1)}, found, *stream_);
        EXPECT_THAT(Read(found), ElementsAre(0)) << numel;
        for (const int64_t at : {int64_t{0}, numel / 2, numel - 1}) {
          if (numel == 0) continue;
          std::vector<double> values(numel, -1);
          values[at] = at % 2 == 0 ? INFINITY : NAN;
          const Tensor bad = Make(DType::kFloat32, {0});
          ops().CheckFinite({Make(dtype, values, 1)}, bad, *stream_);
          EXPECT_THAT(Read(bad), ElementsAre(1)) << numel << " at " << at;
        }
      }
    }
  });
}

TEST_F(OpsTest, CheckFiniteLeavesWhatWasFound) {
  const Tensor found = Make(DType::kFloat32, {1});
  ops().CheckFinite({Make(DType::kFloat32, {2})}, found, *stream_);
  EXPECT_THAT(Read(found), ElementsAre(1));
}

TEST_F(OpsTest, CopyTensorsCopiesTensorsOfAnyDType) {
  const Tensor floats = Make(DType::kBFloat16, {1, 2, 3}, 1), numbers = Make(DType::kInt64, {7, 8});
  const Tensor first = Make(DType::kBFloat16, {0, 0, 0}), second = Make(DType::kInt64, {0, 0}, 1);
  const Tensor none = Make(DType::kFloat32, {});
  ops().CopyTensors({{floats, first}, {none, none}, {numbers, second}}, *stream_);
  EXPECT_THAT(Read(first), ElementsAre(1, 2, 3));
  EXPECT_THAT(Read(second), ElementsAre(7, 8));
}

TEST_F(OpsTest, ACopyBetweenDifferentSizesFailsTheStreamAndCopiesNothing) {
  const Tensor from = Make(DType::kFloat32, {1, 2}), to = Make(DType::kFloat32, {0, 0});
  const Tensor shorter = Make(DType::kFloat32, {0});
  ops().CopyTensors({{from, to}, {from, shorter}}, *stream_);
  EXPECT_THAT(stream_->Synchronize(), StatusIs(absl::StatusCode::kInvalidArgument,
                                               "stream \"ops\": copy_tensors: source has 8 bytes, destination has 4"));
  EXPECT_EQ(*to.data_as<float>(), 0);
}

TEST_F(OpsTest, ScaleByAndCheckFiniteTakeSeveralTensorsOfSeveralDTypes) {
  const Tensor a = Make(DType::kFloat32, {1, 2}), b = Make(DType::kBFloat16, {3});
  ops().ScaleBy({a, b}, Make(DType::kFloat32, {2}), *stream_);
  EXPECT_THAT(Read(a), ElementsAre(2, 4));
  EXPECT_THAT(Read(b), ElementsAre(6));
  const Tensor found = Make(DType::kFloat32, {0});
  ops().CheckFinite({a, b}, found, *stream_);
  EXPECT_THAT(Read(found), ElementsAre(0));
  ops().CheckFinite({a, Make(DType::kFloat16, {NAN}), b}, found, *stream_);
  EXPECT_THAT(Read(found), ElementsAre(1));
}

TEST_F(OpsTest, ClipCoefficientIsTorchs) {
  const auto clip = [&](const std::vector<double>& squares, float max_norm) {
    const Tensor result = Make(DType::kFloat32, {NAN, NAN});
    ops().ClipCoefficient(Make(DType::kFloat32, squares), max_norm, result, *stream_);
    return Read(result);
  };
  EXPECT_THAT(clip({9, 16}, 1), ElementsAre(5, 1.0f / (5.0f + 1e-6f)));
  EXPECT_THAT(clip({9, 16}, 6), ElementsAre(5, 1));
  EXPECT_THAT(clip({9, 16}, INFINITY), ElementsAre(5, 1));
  EXPECT_THAT(clip({9, 16}, 0), ElementsAre(5, 0));
  EXPECT_THAT(clip({}, 1), ElementsAre(0, 1));
  EXPECT_THAT(clip({4, INFINITY}, 1), ElementsAre(INFINITY, 0));
  EXPECT_THAT(clip({4, INFINITY}, INFINITY), ElementsAre(INFINITY, testing::IsNan()));
  EXPECT_THAT(clip({NAN}, 0), testing::Each(testing::IsNan()));
}

TEST_F(OpsTest, PendingKernelsHoldTheirTensors) {
  Tensor source = Make(DType::kFloat32, std::vector<double>(1000, 1));
  const Tensor destination = Make(DType::kFloat32, std::vector<double>(1000, 1));
  for (int i = 0; i < 100; ++i) ops().Accumulate(source, destination, *stream_);
  source = Tensor();
  EXPECT_THAT(Read(destination), testing::Each(101.0));
}

TEST_F(OpsTest, DifferentLengthsFailTheStream) {
  ops().Accumulate(Make(DType::kFloat32, {1, 2}), Make(DType::kFloat32, {1}), *stream_);
  EXPECT_THAT(stream_->Synchronize(), StatusIs(absl::StatusCode::kInvalidArgument,
                                               "stream \"ops\": accumulate: source has 2 elements, destination has 1"));
}

TEST_F(OpsTest, OtherDTypesFailTheStream) {
  ops().CastDivide(Make(DType::kFloat32, {1}), Make(DType::kInt32, {1}), 1, *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "stream \"ops\": cast_divide: destination is int32, not float64, float32, bfloat16 or float16"));
}

TEST_F(OpsTest, UndefinedTensorsFailTheStream) {
  ops().Zero(Tensor(), *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument, "stream \"ops\": zero: tensor is undefined"));
}

TEST_F(OpsTest, AFactorOfTwoElementsFailsTheStream) {
  ops().ScaleBy({Make(DType::kFloat32, {1})}, Make(DType::kFloat32, {1, 2}), *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "stream \"ops\": scale_by: factor is float32 [2], not one float32 element"));
}

TEST_F(OpsTest, AResultOfAnotherDTypeFailsTheStream) {
  ops().AccumulateSquaredNorm({Make(DType::kFloat32, {1})}, Make(DType::kFloat64, {1}), *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "stream \"ops\": accumulate_squared_norm: result is float64 [1], not one float32 element"));
}

}  // namespace
}  // namespace fsdp
