// SPDX-License-Identifier: Apache-2.0
//
// The GPU's kernels against the host's: the same operands, the same bits. Outputs are first filled with NaN, so that an
// element that a kernel misses is found; lengths divide nothing.

#include "fsdp/tensor/ops.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/tensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

constexpr DType kFloats[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16};
// Less than a pack, more than a block, more than the whole grid of the squared norm.
constexpr int64_t kLengths[] = {0, 1, 3, 7, 17, 255, 257, 4099, 300007};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class CudaOpsTest : public testing::Test {
 protected:
  // A device with a stream, and functions that move tensors to and from it.
  struct Side {
    std::shared_ptr<Device> device;
    std::unique_ptr<Stream> stream;
    const TensorOps& ops() const { return device->ops(); }
  };

  void SetUp() override {
    absl::StatusOr<std::shared_ptr<Device>> device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status();
    cuda_.device = *device;
    host_.device = CreateHostDevice();
    for (Side* side : {&host_, &cuda_}) {
      ASSERT_OK_AND_ASSIGN(side->stream, side->device->CreateStream("ops"));
    }
  }

  // `values` as a tensor of `dtype` that starts `offset` elements into its buffer.
  static Tensor Make(const Side& side, DType dtype, const std::vector<double>& values, int64_t offset = 0) {
    const auto numel = static_cast<int64_t>(values.size());
    absl::StatusOr<Tensor> whole = Tensor::Empty(*side.device, dtype, {offset + numel});
    EXPECT_OK(whole);
    const Tensor t = whole->Slice({offset, offset + numel});
    std::vector<char> bytes(t.nbytes());
    EXPECT_OK(Convert(DType::kFloat64, values.data(), dtype, bytes.data(), numel));
    side.stream->CopyAsync(t.data(), bytes.data(), t.nbytes());
    EXPECT_OK(side.stream->Synchronize());
    return t;
  }

  static std::vector<double> Read(const Side& side, const Tensor& t) {
    std::vector<char> bytes(t.nbytes());
    side.stream->CopyAsync(bytes.data(), t.data(), t.nbytes());
    EXPECT_OK(side.stream->Synchronize());
    std::vector<double> values(t.numel());
    EXPECT_OK(Convert(t.dtype(), bytes.data(), DType::kFloat64, values.data(), t.numel()));
    return values;
  }

  // Equal; all NaNs are equal and zeros differ by sign.
  static void ExpectSame(const std::vector<double>& cuda, const std::vector<double>& host, const std::string& what) {
    ASSERT_EQ(cuda.size(), host.size());
    for (size_t i = 0; i < host.size(); ++i) {
      if (std::isnan(host[i]) && std::isnan(cuda[i])) continue;
      ASSERT_EQ(std::memcmp(&cuda[i], &host[i], sizeof(double)), 0)
          << what << " at " << i << ": " << cuda[i] << " on the GPU, " << host[i] << " on the host";
    }
  }

  Side host_;
  Side cuda_;
};

// Random values of all magnitudes that a 16-bit float has and some that it lacks, including special values.
std::vector<double> Random(int64_t numel, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 1);
  std::vector<double> values(numel);
  for (double& value : values) value = std::ldexp(normal(random), static_cast<int>(random() % 40) - 24);
  const double special[] = {0.0, -0.0, INFINITY, -INFINITY, kNan, 65504, 65520, 3.4e38, 1e-40, 5.9e-8};
  for (size_t i = 0; i < values.size(); i += 29) values[i] = special[i / 29 % std::size(special)];
  return values;
}

std::string Name(DType from, DType to, int64_t numel) {
  return std::string(DTypeName(from)) + " to " + std::string(DTypeName(to)) + ", " + std::to_string(numel);
}

TEST_F(CudaOpsTest, ZeroClearsItsElementsAndNoOthers) {
  for (DType dtype : AllDTypes()) {
    if (dtype == DType::kFloat8E8M0FNU || IsPacked(dtype)) continue;  // has no zero, or no single numbers
    const Tensor whole = Make(cuda_, dtype, std::vector<double>(301, 1.0));
    cuda_.ops().Zero(whole.Slice({7, 264}), *cuda_.stream);
    std::vector<double> want(301, 1.0);
    std::fill(want.begin() + 7, want.begin() + 264, 0.0);
    ExpectSame(Read(cuda_, whole), want, std::string(DTypeName(dtype)));
  }
}

TEST_F(CudaOpsTest, CastDivideEqualsTheHosts) {
  for (DType from : kFloats) {
    for (DType to : kFloats) {
      for (int64_t numel : kLengths) {
        for (double divisor : {1.0, 3.0}) {
          for (int64_t offset : {0, 3}) {                                          // in packs, and one by one
            if (numel == kLengths[8] && offset != (from == to ? 0 : 3)) continue;  // long: either of the two
            std::vector<double> got[2];
            for (const Side* side : {&host_, &cuda_}) {
              const Tensor source = Make(*side, from, Random(numel, 1), offset);
              const Tensor destination = Make(*side, to, std::vector<double>(numel, kNan), offset);
              side->ops().CastDivide(source, destination, divisor, *side->stream);
              got[side == &cuda_] = Read(*side, destination);
            }
            ExpectSame(got[1], got[0], Name(from, to, numel));
          }
        }
      }
    }
  }
}

TEST_F(CudaOpsTest, CastDivideInPlace) {
  for (DType dtype : kFloats) {
    std::vector<double> got[2];
    for (const Side* side : {&host_, &cuda_}) {
      const Tensor t = Make(*side, dtype, Random(4099, 2));
      side->ops().CastDivide(t, t, 3, *side->stream);
      side->ops().CastDivide(t, t, 1, *side->stream);
      got[side == &cuda_] = Read(*side, t);
    }
    ExpectSame(got[1], got[0], std::string(DTypeName(dtype)));
  }
}

TEST_F(CudaOpsTest, AccumulateEqualsTheHosts) {
  for (DType from : kFloats) {
    for (DType to : kFloats) {
      for (int64_t numel : kLengths) {
        for (int64_t offset : {0, 1}) {
          if (numel == kLengths[8] && offset != (from == to)) continue;
          std::vector<double> got[2];
          for (const Side* side : {&host_, &cuda_}) {
            const Tensor source = Make(*side, from, Random(numel, 3), offset);
            const Tensor destination = Make(*side, to, Random(numel, 4), offset);
            side->ops().Accumulate(source, destination, *side->stream);
            got[side == &cuda_] = Read(*side, destination);
          }
          ExpectSame(got[1], got[0], Name(from, to, numel));
        }
      }
    }
  }
}

TEST_F(CudaOpsTest, ScaleByEqualsTheHosts) {
  for (DType dtype : kFloats) {
    for (int64_t numel : kLengths) {
      std::vector<double> got[2];
      for (const Side* side : {&host_, &cuda_}) {
        const Tensor t = Make(*side, dtype, Random(numel, 5), 1);
        const Tensor factor = Make(*side, DType::kFloat32, {0.3});
        side->ops().ScaleBy({t}, factor, *side->stream);
        got[side == &cuda_] = Read(*side, t);
      }
      ExpectSame(got[1], got[0], Name(dtype, dtype, numel));
    }
  }
}

TEST_F(CudaOpsTest, ScaleByReadsItsFactorInStreamOrder) {
  const Tensor t = Make(cuda_, DType::kFloat32, {3});
  const Tensor two = Make(cuda_, DType::kFloat32, {2});
  const Tensor factor = Make(cuda_, DType::kFloat32, {kNan});
  cuda_.ops().CastDivide(two, factor, 1, *cuda_.stream);
  cuda_.ops().ScaleBy({t}, factor, *cuda_.stream);
  EXPECT_THAT(Read(cuda_, t), testing::ElementsAre(6));
}

TEST_F(CudaOpsTest, SquaredNormIsExactWhereTheSumIs) {
  for (DType dtype : kFloats) {
    for (int64_t numel : kLengths) {
      // Small integers: no order of summation rounds.
      std::vector<double> values(numel);
      double want = 5;
      for (int64_t i = 0; i < numel; ++i) {
        values[i] = static_cast<double>(i % 7) - 3;
        want += values[i] * values[i];
      }
      const Tensor source = Make(cuda_, dtype, values, 1);
      const Tensor result = Make(cuda_, DType::kFloat32, {5});
      cuda_.ops().AccumulateSquaredNorm({source}, result, *cuda_.stream);
      EXPECT_THAT(Read(cuda_, result), testing::ElementsAre(want)) << Name(dtype, dtype, numel);
    }
  }
}

TEST_F(CudaOpsTest, SquaredNormIsTheSameInEveryRunAndCloseToTheHosts) {
  std::vector<double> values(300007);
  std::mt19937 random(6);
  std::normal_distribution<double> normal(0, 1);
  for (double& value : values) value = normal(random);
  std::vector<double> runs;
  for (int run = 0; run < 5; ++run) {
    const Tensor result = Make(cuda_, DType::kFloat32, {0});
    cuda_.ops().AccumulateSquaredNorm({Make(cuda_, DType::kFloat32, values)}, result, *cuda_.stream);
    runs.push_back(Read(cuda_, result)[0]);
  }
  EXPECT_THAT(runs, testing::Each(runs[0]));
  const Tensor result = Make(host_, DType::kFloat32, {0});
  host_.ops().AccumulateSquaredNorm({Make(host_, DType::kFloat32, values)}, result, *host_.stream);
  // float64 sums in two orders, then one rounding to float32.
  EXPECT_FLOAT_EQ(runs[0], Read(host_, result)[0]);
}

// More sources than one launch takes, of all dtypes and of lengths that divide nothing. Small integers: exact.
TEST_F(CudaOpsTest, SquaredNormOfManySourcesCountsEveryElementOnce) {
  std::vector<Tensor> sources;
  double want = 3;
  for (int i = 0; i < 500; ++i) {
    const int64_t numel = i == 250 ? 70001 : (i * 37) % 91;
    std::vector<double> values(numel);
    for (int64_t k = 0; k < numel; ++k) {
      values[k] = static_cast<double>((k + i) % 5) - 2;
      want += values[k] * values[k];
    }
    sources.push_back(Make(cuda_, kFloats[i % 3 == 0 ? i % 4 : 1], values, i % 7));
  }
  const Tensor result = Make(cuda_, DType::kFloat32, {3});
  cuda_.ops().AccumulateSquaredNorm(sources, result, *cuda_.stream);
  EXPECT_THAT(Read(cuda_, result), testing::ElementsAre(want));
  cuda_.ops().AccumulateSquaredNorm({}, result, *cuda_.stream);
  EXPECT_THAT(Read(cuda_, result), testing::ElementsAre(want));
}

TEST_F(CudaOpsTest, SquaredNormLetsNanAndInfinityThrough) {
  for (double special : {kNan, static_cast<double>(INFINITY)}) {
    std::vector<double> values(1000, 1.0);
    values[777] = special;
    const Tensor result = Make(cuda_, DType::kFloat32, {0});
    cuda_.ops().AccumulateSquaredNorm({Make(cuda_, DType::kBFloat16, values)}, result, *cuda_.stream);
    ExpectSame(Read(cuda_, result), {special}, "squared norm");
  }
}

// More intervals than one launch takes, of lengths that divide nothing; some of their places are aligned together.
TEST_F(CudaOpsTest, CastDivideIntervalsEqualsTheHosts) {
  std::vector<IntervalCopy> copies;
  int64_t from = 0, to = 1;
  for (int i = 0; i < 150; ++i) {
    const int64_t numel = i == 77 ? 20011 : (i * 37) % 91;
    copies.push_back({from, to, numel});
    from += numel + i % 3;
    to += numel + i % 2;
  }
  for (DType dtype : kFloats) {
    for (DType wanted : kFloats) {
      for (double divisor : {1.0, 3.0}) {
        std::vector<double> got[2];
        for (const Side* side : {&host_, &cuda_}) {
          const Tensor source = Make(*side, dtype, Random(from, 7), 1);
          const Tensor destination = Make(*side, wanted, std::vector<double>(to + 3, kNan));
          side->ops().CastDivideIntervals(source, destination, copies, divisor, *side->stream);
          got[side == &cuda_] = Read(*side, destination);
        }
        ExpectSame(got[1], got[0], Name(dtype, wanted, from));
        EXPECT_TRUE(std::isnan(got[1][0]));
      }
    }
  }
}

TEST_F(CudaOpsTest, CheckFiniteFindsOneBadElementAnywhere) {
  for (DType dtype : kFloats) {
    for (int64_t numel : {1, 3, 7, 257, 4099}) {
      for (int64_t at : {int64_t{-1}, int64_t{0}, numel / 2, numel - 1}) {
        std::vector<double> values(numel, -3e4);
        if (at >= 0) values[at] = at % 2 == 0 ? INFINITY : kNan;
        const Tensor found = Make(cuda_, DType::kFloat32, {0});
        cuda_.ops().CheckFinite({Make(cuda_, dtype, values, 1)}, found, *cuda_.stream);
        EXPECT_THAT(Read(cuda_, found), testing::ElementsAre(at >= 0 ? 1 : 0)) << Name(dtype, dtype, numel) << at;
      }
    }
  }
}

// More tensors than one launch takes, of all dtypes, of lengths that divide nothing and at odd addresses.
TEST_F(CudaOpsTest, ScaleByAndCheckFiniteOfManyTensorsEqualTheHosts) {
  std::vector<Tensor> tensors[2];
  for (const Side* side : {&host_, &cuda_}) {
    const Tensor factor = Make(*side, DType::kFloat32, {0.3});
    std::vector<Tensor>& own = tensors[side == &cuda_];
    for (int i = 0; i < 300; ++i) {
      own.push_back(Make(*side, kFloats[i % 4], Random(i == 150 ? 9001 : (i * 37) % 91, i), i % 7));
    }
    side->ops().ScaleBy(own, factor, *side->stream);
  }
  for (size_t i = 0; i < tensors[0].size(); ++i) {
    ExpectSame(Read(cuda_, tensors[1][i]), Read(host_, tensors[0][i]), "tensor " + std::to_string(i));
  }
  std::vector<Tensor> finite;
  for (int i = 0; i < 300; ++i) finite.push_back(Make(cuda_, kFloats[i % 4], std::vector<double>(i % 20, 1), i % 3));
  const Tensor found = Make(cuda_, DType::kFloat32, {0});
  cuda_.ops().CheckFinite(finite, found, *cuda_.stream);
  EXPECT_THAT(Read(cuda_, found), testing::ElementsAre(0));
  finite[299] = Make(cuda_, DType::kFloat16, {1, 2, INFINITY}, 1);
  cuda_.ops().CheckFinite(finite, found, *cuda_.stream);
  EXPECT_THAT(Read(cuda_, found), testing::ElementsAre(1));
}

TEST_F(CudaOpsTest, CopyTensorsCopiesEveryByteOfManyTensorsAndNoOthers) {
  constexpr int64_t kLength = 200000;
  for (const DType dtype : {DType::kUInt8, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    std::vector<double> values(kLength), want(kLength, 99);
    for (int64_t i = 0; i < kLength; ++i) values[i] = static_cast<double>(i % 97);
    const Tensor source = Make(cuda_, dtype, values), destination = Make(cuda_, dtype, want);
    std::vector<TensorCopy> copies;
    int64_t from = 1, to = 2;
    for (int i = 0; i < 300; ++i) {
      const int64_t numel = i == 77 ? 50011 : (i * 37) % 91;
      copies.push_back({source.Slice({from, from + numel}), destination.Slice({to, to + numel})});
      for (int64_t k = 0; k < numel; ++k) want[to + k] = values[from + k];
      from += numel + i % 3;
      to += numel + i % 5;
    }
    cuda_.ops().CopyTensors(std::move(copies), *cuda_.stream);
    ExpectSame(Read(cuda_, destination), want, std::string(DTypeName(dtype)));
  }
}

TEST_F(CudaOpsTest, ACopyBetweenDifferentSizesFailsTheStream) {
  const Tensor three = Make(cuda_, DType::kFloat32, {1, 2, 3}), two = Make(cuda_, DType::kFloat32, {1, 2});
  cuda_.ops().CopyTensors({{three, two}}, *cuda_.stream);
  EXPECT_THAT(cuda_.stream->Synchronize(), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    HasSubstr("copy_tensors: source has 12 bytes, destination has 8")));
}

TEST_F(CudaOpsTest, ClipCoefficientEqualsTheHosts) {
  const std::vector<std::vector<double>> cases = {{}, {0}, {9, 16}, {0.1, 0.7, 1e-3}, {1e30, 1}, {INFINITY}, {kNan, 1}};
  for (const std::vector<double>& squares : cases) {
    for (float max_norm : {0.0f, 0.3f, 1.0f, 1e20f, INFINITY}) {
      std::vector<double> got[2];
      for (const Side* side : {&host_, &cuda_}) {
        const Tensor result = Make(*side, DType::kFloat32, {kNan, kNan});
        side->ops().ClipCoefficient(Make(*side, DType::kFloat32, squares), max_norm, result, *side->stream);
        got[side == &cuda_] = Read(*side, result);
      }
      ExpectSame(got[1], got[0], "clip");
    }
  }
}

TEST_F(CudaOpsTest, AnIntervalOutsideOfItsTensorFailsTheStream) {
  const Tensor three = Make(cuda_, DType::kFloat32, {1, 2, 3});
  const Tensor two = Make(cuda_, DType::kFloat32, {1, 2});
  cuda_.ops().CastDivideIntervals(three, two, {{2, 0, 2}}, 1, *cuda_.stream);
  EXPECT_THAT(cuda_.stream->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("interval 0 goes from 2 to 0, 2 elements")));
}

TEST_F(CudaOpsTest, WrongOperandsFailTheStream) {
  const Tensor three = Make(cuda_, DType::kFloat32, {1, 2, 3});
  const Tensor two = Make(cuda_, DType::kFloat32, {1, 2});
  cuda_.ops().Accumulate(three, two, *cuda_.stream);
  EXPECT_THAT(cuda_.stream->Synchronize(), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    HasSubstr("accumulate: source has 3 elements, destination has 2")));
}

}  // namespace
}  // namespace fsdp
