// SPDX-License-Identifier: Apache-2.0
//
// The interval is cut into tiles of the weight. For each tile the rows of the left factor and the columns of the right
// one are read, as float64; then each row of the tile is made kLanes columns at a time.
#include "fsdp/checkpoint/foreign/peft/low_rank.h"

#include <algorithm>
#include <array>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert.h"

namespace fsdp {
namespace {

constexpr int64_t kTileElements = int64_t{1} << 17;  // of a factor: 1 MiB
constexpr int64_t kLanes = 256;

using Lanes = std::array<double, kLanes>;

bool IsWide(DType dtype) { return dtype == DType::kFloat64; }

DType DTypeOf(const TensorSource& source, const StateKey& key) { return source.contents().FindTensor(key)->dtype; }

// Rows `rows` and columns `columns` of a matrix of `width` columns, as float64, row after row.
absl::Status ReadMatrix(const TensorSource& source, const StateKey& key, int64_t width, const Interval& rows,
                        const Interval& columns, std::vector<double>& out) {
  const DType dtype = DTypeOf(source, key);
  out.resize(rows.size() * columns.size());
  std::vector<std::byte> raw;
  const bool is_whole = columns.size() == width;
  const int64_t run = is_whole ? rows.size() * width : columns.size();
  raw.resize(run * SizeOf(dtype));
  for (int64_t row = rows.begin, done = 0; done < std::ssize(out); ++row, done += run) {
    const int64_t begin = row * width + columns.begin;
    FSDP_RETURN_IF_ERROR(source.Read(key, {begin, begin + run}, raw.data()));
    FSDP_RETURN_IF_ERROR(Convert(dtype, raw.data(), DType::kFloat64, out.data() + done, run));
  }
  return absl::OkStatus();
}

// The transpose of [rows, columns].
std::vector<double> Transposed(const std::vector<double>& matrix, int64_t rows, int64_t columns) {
  std::vector<double> out(matrix.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) out[column * rows + row] = matrix[row * columns + column];
  }
  return out;
}

// weight += scale * product, elementwise. `T` is the type of the arithmetic.
template <typename T>
absl::Status AddProduct(const double* product, double scale, DType dtype, std::byte* weight, int64_t numel) {
  constexpr DType kWork = sizeof(T) == sizeof(double) ? DType::kFloat64 : DType::kFloat32;
  std::array<T, kLanes> values;
  FSDP_RETURN_IF_ERROR(Convert(dtype, weight, kWork, values.data(), numel));
  // In two loops, so that no compiler fuses the two roundings into one.
  std::array<T, kLanes> scaled;
  for (int64_t i = 0; i < numel; ++i) scaled[i] = static_cast<T>(product[i]) * static_cast<T>(scale);
  for (int64_t i = 0; i < numel; ++i) values[i] += scaled[i];
  return Convert(kWork, values.data(), dtype, weight, numel);
}

// A tile of the weight and the parts of both factors that it needs.
struct Tile {
  Interval rows;
  Interval columns;
  std::vector<double> left = {};   // [rows, rank]
  std::vector<double> right = {};  // [rank, columns]
};

absl::Status ReadFactors(const TensorSource& adapter, const LowRank& change, Tile& tile) {
  const Interval all = {0, change.rank};
  if (!change.is_transposed) {
    FSDP_RETURN_IF_ERROR(ReadMatrix(adapter, change.b, change.rank, tile.rows, all, tile.left));
    return ReadMatrix(adapter, change.a, change.in, all, tile.columns, tile.right);
  }
  std::vector<double> read;
  FSDP_RETURN_IF_ERROR(ReadMatrix(adapter, change.a, change.in, all, tile.rows, read));
  tile.left = Transposed(read, change.rank, tile.rows.size());
  FSDP_RETURN_IF_ERROR(ReadMatrix(adapter, change.b, change.rank, tile.columns, all, read));
  tile.right = Transposed(read, tile.columns.size(), change.rank);
  return absl::OkStatus();
}

// product += factor * right, rounded to `T`: a fused multiplication and addition of float32, since a product of two is
// exact in float64.
template <typename T>
void AddMultiple(double factor, const double* right, int64_t lanes, double* product) {
  for (int64_t i = 0; i < lanes; ++i) product[i] = static_cast<T>(product[i] + factor * right[i]);
}

// Columns [begin, begin + kLanes) of row `row` of the tile, counted from its first.
template <typename T>
void ProductOf(const Tile& tile, int64_t rank, int64_t row, int64_t begin, Lanes& product) {
  const int64_t width = tile.columns.size();
  const int64_t lanes = std::min(kLanes, width - begin);
  product.fill(0);
  for (int64_t k = 0; k < rank; ++k) {
    const double factor = tile.left[row * rank + k];
    const double* const right = &tile.right[k * width + begin];
    if (lanes == kLanes) {
      AddMultiple<T>(factor, right, kLanes, product.data());  // a number that the compiler knows
    } else {
      AddMultiple<T>(factor, right, lanes, product.data());
    }
  }
}

// Adds the elements `part`, which are in one row of the tile, to `weight`.
template <typename T>
absl::Status AddRow(const Tile& tile, const LowRank& change, const Interval& part, int64_t width, DType dtype,
                    std::byte* weight) {
  const int64_t row = part.begin / width;
  const int64_t column = part.begin - row * width;
  for (int64_t begin = 0; begin < part.size(); begin += kLanes) {
    Lanes product;
    ProductOf<T>(tile, change.rank, row - tile.rows.begin, column + begin - tile.columns.begin, product);
    FSDP_RETURN_IF_ERROR(AddProduct<T>(product.data(), change.scale, dtype, weight + begin * SizeOf(dtype),
                                       std::min(kLanes, part.size() - begin)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddLowRank(const TensorSource& adapter, const LowRank& change, const Interval& interval, DType dtype,
                        std::byte* weight) {
  if (interval.empty()) return absl::OkStatus();
  const int64_t width = change.is_transposed ? change.out : change.in;
  const bool is_wide = IsWide(dtype) || IsWide(DTypeOf(adapter, change.a)) || IsWide(DTypeOf(adapter, change.b));
  const int64_t most = std::max<int64_t>(1, kTileElements / change.rank);  // rows or columns of a tile
  const Interval rows = {interval.begin / width, (interval.end + width - 1) / width};
  // A part of one row needs only its own columns.
  const int64_t before = rows.begin * width;
  const Interval columns =
      rows.size() == 1 ? Interval{interval.begin - before, interval.end - before} : Interval{0, width};
  Tile tile;
  for (int64_t row = rows.begin; row < rows.end; row += most) {
    tile.rows = {row, std::min(row + most, rows.end)};
    for (int64_t column = columns.begin; column < columns.end; column += most) {
      tile.columns = {column, std::min(column + most, columns.end)};
      FSDP_RETURN_IF_ERROR(ReadFactors(adapter, change, tile));
      for (int64_t r = tile.rows.begin; r < tile.rows.end; ++r) {
        const Interval in_row = {r * width + tile.columns.begin, r * width + tile.columns.end};
        const Interval part = Intersect(in_row, interval);
        if (part.empty()) continue;
        std::byte* const to = weight + (part.begin - interval.begin) * SizeOf(dtype);
        FSDP_RETURN_IF_ERROR(is_wide ? AddRow<double>(tile, change, part, width, dtype, to)
                                     : AddRow<float>(tile, change, part, width, dtype, to));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AddScaled(const TensorSource& adapter, const StateKey& key, double scale, const Interval& interval,
                       DType dtype, std::byte* values) {
  const bool is_wide = IsWide(dtype) || IsWide(DTypeOf(adapter, key));
  const int64_t width = adapter.contents().FindTensor(key)->shape.numel();
  std::vector<double> read;
  for (int64_t begin = interval.begin; begin < interval.end; begin += kLanes) {
    const Interval part = {begin, std::min(begin + kLanes, interval.end)};
    FSDP_RETURN_IF_ERROR(ReadMatrix(adapter, key, width, {0, 1}, part, read));
    std::byte* const to = values + (begin - interval.begin) * SizeOf(dtype);
    FSDP_RETURN_IF_ERROR(is_wide ? AddProduct<double>(read.data(), scale, dtype, to, part.size())
                                 : AddProduct<float>(read.data(), scale, dtype, to, part.size()));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
