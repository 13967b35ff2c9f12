// SPDX-License-Identifier: Apache-2.0
//
// The kernels against the plain definition, one element at a time, with tensor/convert_elements.h for the 16-bit
// floats; every instruction set that this machine has, bit for bit.
#include "fsdp/collectives/host/reduce_rows.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/tensor/convert_elements.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Bytes = std::vector<std::byte>;

// Random bits: all exponents, subnormals and infinities occur. At most one row has a NaN per element, because the
// instruction decides which of two NaNs survives an addition.
Bytes RandomRow(DType dtype, int64_t numel, int row, std::mt19937_64& random) {
  Bytes bytes(static_cast<size_t>(numel * SizeOf(dtype)));
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random());
  }
  for (int64_t i = 0; i < numel; ++i) {
    std::byte* const at = bytes.data() + i * SizeOf(dtype);
    double value = 0;
    if (IsFloatingPoint(dtype) && Convert(dtype, at, DType::kFloat64, &value, 1).ok() && !std::isfinite(value) &&
        i % 4 != row) {
      std::memset(at, 0, SizeOf(dtype));
    }
  }
  return bytes;
}

template <typename T>
T Combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kMin:
      return b < a || b != b ? b : a;
    case ReduceOp::kMax:
      return b > a || b != b ? b : a;
    default:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
      } else {
        return a + b;
      }
  }
}

// The definition, for elements stored as Stored and combined as Sum.
template <typename Stored, typename Sum, typename Load, typename Store>
Bytes Expected(ReduceOp op, const std::vector<Bytes>& rows, const Load& load, const Store& store) {
  const size_t numel = rows[0].size() / sizeof(Stored);
  Bytes result(rows[0].size());
  for (size_t i = 0; i < numel; ++i) {
    Sum sum = {};
    for (size_t r = 0; r < rows.size(); ++r) {
      Stored stored;
      std::memcpy(&stored, rows[r].data() + i * sizeof(Stored), sizeof(Stored));
      sum = r == 0 ? load(stored) : Combine<Sum>(op, sum, load(stored));
    }
    if (op == ReduceOp::kAvg) {
      sum /= static_cast<Sum>(rows.size());
    }
    const Stored stored = store(sum);
    std::memcpy(result.data() + i * sizeof(Stored), &stored, sizeof(Stored));
  }
  return result;
}

Bytes ExpectedRow(DType dtype, ReduceOp op, const std::vector<Bytes>& rows) {
  const auto same = [](auto value) { return value; };
  switch (dtype) {
    case DType::kFloat64:
      return Expected<double, double>(op, rows, same, same);
    case DType::kFloat32:
      return Expected<float, float>(op, rows, same, same);
    case DType::kBFloat16:
      return Expected<uint16_t, float>(op, rows, BFloat16ToFloat, FloatToBFloat16);
    case DType::kFloat16:
      return Expected<uint16_t, float>(op, rows, Float16ToFloat, FloatToFloat16);
    case DType::kInt64:
      return Expected<int64_t, int64_t>(op, rows, same, same);
    default:
      return Expected<int32_t, int32_t>(op, rows, same, same);
  }
}

bool IsNan(DType dtype, const std::byte* element) {
  double value = 0;
  return IsFloatingPoint(dtype) && Convert(dtype, element, DType::kFloat64, &value, 1).ok() && std::isnan(value);
}

// Equal bits; a NaN equals any other NaN.
testing::AssertionResult SameElements(DType dtype, const Bytes& got, const Bytes& want) {
  const size_t width = static_cast<size_t>(SizeOf(dtype));
  for (size_t at = 0; at < want.size(); at += width) {
    if (std::memcmp(got.data() + at, want.data() + at, width) != 0 &&
        !(IsNan(dtype, got.data() + at) && IsNan(dtype, want.data() + at))) {
      return testing::AssertionFailure() << "element " << at / width << " of " << want.size() / width << " differs";
    }
  }
  return testing::AssertionSuccess();
}

struct Case {
  DType dtype;
  ReduceOp op;
};

class ReduceRowsTest : public testing::TestWithParam<Case> {};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const DType dtype :
       {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt64, DType::kInt32}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
      if (IsFloatingPoint(dtype) || op != ReduceOp::kAvg) {
        cases.push_back({dtype, op});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, ReduceRowsTest, testing::ValuesIn(Cases()), [](const auto& info) {
  return absl::StrCat(std::string(DTypeName(info.param.dtype)), "_", std::string(ReduceOpName(info.param.op)));
});

TEST_P(ReduceRowsTest, EveryTargetGivesTheDefinitionBitForBit) {
  const auto [dtype, op] = GetParam();
  std::mt19937_64 random(7);
  for (const int64_t numel : {0, 1, 15, 33, 1024, 5003}) {
    for (const int n : {1, 2, 3, 8}) {
      std::vector<Bytes> rows;
      std::vector<const std::byte*> pointers;
      for (int r = 0; r < n; ++r) {
        rows.push_back(RandomRow(dtype, numel, r, random));
      }
      for (const Bytes& row : rows) {
        pointers.push_back(row.data());
      }
      const Bytes want = ExpectedRow(dtype, op, rows);
      for (const ReduceTarget target : {ReduceTarget::kBaseline, ReduceTarget::kAvx2, ReduceTarget::kAvx512}) {
        if (IsSupported(target)) {
          Bytes got(want.size());
          ReduceRowsOn(target, dtype, op, {.rows = pointers, .destination = got.data(), .numel = numel});
          EXPECT_TRUE(SameElements(dtype, got, want)) << n << " rows, target " << static_cast<int>(target);
        }
      }
    }
  }
}

TEST_P(ReduceRowsTest, TheDestinationMayBeARow) {
  const auto [dtype, op] = GetParam();
  std::mt19937_64 random(8);
  std::vector<Bytes> rows;
  for (int r = 0; r < 3; ++r) {
    rows.push_back(RandomRow(dtype, 3000, r, random));
  }
  const Bytes want = ExpectedRow(dtype, op, rows);
  for (int in_place = 0; in_place < 3; ++in_place) {
    std::vector<Bytes> copy = rows;
    const std::vector<const std::byte*> pointers = {copy[0].data(), copy[1].data(), copy[2].data()};
    ReduceRows(dtype, op, {.rows = pointers, .destination = copy[in_place].data(), .numel = 3000});
    EXPECT_TRUE(SameElements(dtype, copy[in_place], want)) << in_place;
  }
}

// Rows of several hosts: the sum of the first is passed, in its own type, to the next.
TEST_P(ReduceRowsTest, ASumThatIsCarriedOnHasTheBitsOfOneSum) {
  const auto [dtype, op] = GetParam();
  std::mt19937_64 random(9);
  const int64_t numel = 3001;
  std::vector<Bytes> rows;
  std::vector<const std::byte*> pointers;
  for (int r = 0; r < 5; ++r) rows.push_back(RandomRow(dtype, numel, r, random));
  for (const Bytes& row : rows) pointers.push_back(row.data());
  const Bytes want = ExpectedRow(dtype, op, rows);
  for (const size_t on_first : {1, 2, 4}) {
    Bytes sum(static_cast<size_t>(numel * SumSizeOf(dtype)));
    Bytes got(want.size());
    const absl::Span<const std::byte* const> all = pointers;
    const size_t on_second = (5 - on_first + 1) / 2;
    ReduceRows(dtype, op,
               {.rows = all.first(on_first), .destination = sum.data(), .numel = numel, .is_continued = true});
    if (on_first + on_second < 5) {
      ReduceRows(dtype, op,
                 {.rows = all.subspan(on_first, on_second),
                  .destination = sum.data(),
                  .numel = numel,
                  .sum_before = sum.data(),
                  .is_continued = true});
    }
    const size_t before_last = on_first + on_second < 5 ? on_first + on_second : on_first;
    ReduceRows(dtype, op,
               {.rows = all.subspan(before_last),
                .destination = got.data(),
                .numel = numel,
                .sum_before = sum.data(),
                .rows_in_all = 5});
    EXPECT_TRUE(SameElements(dtype, got, want)) << on_first;
  }
}

// Large enough to be written around the caches, at every alignment that its elements allow.
TEST(ReduceRowsTest, LargeDestinationsNeedNoAlignment) {
  const int64_t numel = (5 << 20) / 2 + 3;
  std::vector<uint16_t> row(numel + 16);
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = FloatToBFloat16(static_cast<float>(i % 128));
  }
  for (const int64_t offset : {0, 1, 7, 8}) {
    const auto* const first = reinterpret_cast<const std::byte*>(row.data() + offset);
    const auto* const second = reinterpret_cast<const std::byte*>(row.data());
    const std::vector<const std::byte*> rows = {first, second};
    std::vector<uint16_t> sum(numel + 16);
    ReduceRows(DType::kBFloat16, ReduceOp::kSum,
               {.rows = rows, .destination = reinterpret_cast<std::byte*>(sum.data() + offset), .numel = numel});
    for (int64_t i = 0; i < numel; ++i) {
      ASSERT_EQ(BFloat16ToFloat(sum[offset + i]), static_cast<float>((i + offset) % 128 + i % 128)) << i;
    }
    EXPECT_EQ(sum[offset + numel], 0);
  }
}

// Every value of a 16-bit float through a sum of one row, that is, to float32 and back.
TEST(ReduceRowsTest, SixteenBitFloatsSurviveTheRoundTrip) {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<uint16_t>(i);
  }
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Bytes want(all.size() * 2);
    std::memcpy(want.data(), all.data(), want.size());
    Bytes got(want.size());
    const std::vector<const std::byte*> rows = {want.data()};
    ReduceRows(dtype, ReduceOp::kSum, {.rows = rows, .destination = got.data(), .numel = 1 << 16});
    EXPECT_TRUE(SameElements(dtype, got, want));
  }
}

// 256 + 1 is halfway between two bfloat16; rounded after each addition the ones would be lost.
TEST(ReduceRowsTest, SixteenBitFloatsAreRoundedOnce) {
  const std::vector<uint16_t> large(5, FloatToBFloat16(256));
  const std::vector<uint16_t> one(5, FloatToBFloat16(1));
  const auto* const a = reinterpret_cast<const std::byte*>(large.data());
  const auto* const b = reinterpret_cast<const std::byte*>(one.data());
  const std::vector<const std::byte*> rows = {a, b, b, b, b};
  std::vector<uint16_t> sum(5);
  ReduceRows(DType::kBFloat16, ReduceOp::kSum,
             {.rows = rows, .destination = reinterpret_cast<std::byte*>(sum.data()), .numel = 5});
  EXPECT_EQ(BFloat16ToFloat(sum[4]), 260);
}

}  // namespace
}  // namespace fsdp
