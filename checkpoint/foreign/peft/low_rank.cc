// SPDX-License-Identifier: Apache-2.0
//
// The interval is cut into tiles of the weight. For each tile the rows of the left factor and the columns of the right
// one are read, in the type of the arithmetic; then each row of the tile is made, some columns at a time.
#include "fsdp/checkpoint/foreign/peft/low_rank.h"

#include <algorithm>
#include <array>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/peft/fused_sums.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

constexpr int64_t kTileElements = int64_t{1} << 18;  // of a factor: 1 MiB, or 2 MiB of float64
constexpr int64_t kColumns = 512;                    // of a row that are made at a time

template <typename T>
constexpr DType kDTypeOf = sizeof(T) == sizeof(double) ? DType::kFloat64 : DType::kFloat32;

bool IsWide(DType dtype) { return dtype == DType::kFloat64; }

DType DTypeOf(const TensorSource& source, const StateKey& key) { return source.contents().FindTensor(key)->dtype; }

// Rows `rows` and columns `columns` of a matrix of `width` columns, row after row.
template <typename T>
absl::Status ReadMatrix(const TensorSource& source, const StateKey& key, int64_t width, const Interval& rows,
                        const Interval& columns, std::vector<T>& out) {
  const DType dtype = DTypeOf(source, key);
  out.resize(rows.size() * columns.size());
  const bool is_whole = columns.size() == width;
  const int64_t run = is_whole ? rows.size() * width : columns.size();
  std::vector<std::byte> raw(run * SizeOf(dtype));
  for (int64_t row = rows.begin, done = 0; done < std::ssize(out); ++row, done += run) {
    const int64_t begin = row * width + columns.begin;
    FSDP_RETURN_IF_ERROR(source.Read(key, {begin, begin + run}, raw.data()));
    FSDP_RETURN_IF_ERROR(Convert(dtype, raw.data(), kDTypeOf<T>, out.data() + done, run));
  }
  return absl::OkStatus();
}

// The transpose of [rows, columns].
template <typename T>
std::vector<T> Transposed(const std::vector<T>& matrix, int64_t rows, int64_t columns) {
  std::vector<T> out(matrix.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) out[column * rows + row] = matrix[row * columns + column];
  }
  return out;
}

// weight += scale * product, elementwise.
template <typename T>
absl::Status AddProduct(const T* product, double scale, DType dtype, std::byte* weight, int64_t numel) {
  std::array<T, kColumns> values;
  FSDP_RETURN_IF_ERROR(Convert(dtype, weight, kDTypeOf<T>, values.data(), numel));
  // In two loops, so that no compiler fuses the two roundings into one.
  std::array<T, kColumns> scaled;
  for (int64_t i = 0; i < numel; ++i) scaled[i] = product[i] * static_cast<T>(scale);
  for (int64_t i = 0; i < numel; ++i) values[i] += scaled[i];
  return Convert(kDTypeOf<T>, values.data(), dtype, weight, numel);
}

// W += scale * B A, tile by tile: neither factor needs to be in memory as a whole, however large the rank is, and an
// interval of the weight reads only the rows of B and the columns of A that it needs. The sums run over the rank in
// ascending order with one rounding per term, as PyTorch's matrix product on hosts does for such sizes; that is what
// makes bfloat16 results equal.
// A tile of the weight and the parts of both factors that it needs.
template <typename T>
struct Tile {
  Interval rows;
  Interval columns;
  std::vector<T> left = {};   // [rows, rank]
  std::vector<T> right = {};  // [rank, columns]
};

template <typename T>
// For a transposed weight [in, out] the product is (B A)^T = A^T B^T.
absl::Status ReadFactors(const TensorSource& adapter, const LowRank& change, Tile<T>& tile) {
  const Interval all = {0, change.rank};
  if (!change.is_transposed) {
    FSDP_RETURN_IF_ERROR(ReadMatrix(adapter, change.b, change.rank, tile.rows, all, tile.left));
    return ReadMatrix(adapter, change.a, change.in, all, tile.columns, tile.right);
  }
  std::vector<T> read;
  FSDP_RETURN_IF_ERROR(ReadMatrix(adapter, change.a, change.in, all, tile.rows, read));
  tile.left = Transposed(read, change.rank, tile.rows.size());
  FSDP_RETURN_IF_ERROR(ReadMatrix(adapter, change.b, change.rank, tile.columns, all, read));
  tile.right = Transposed(read, tile.columns.size(), change.rank);
  return absl::OkStatus();
}

void Sums(const float* factors, const float* terms, int64_t count, int64_t stride, float* sums, int64_t numel) {
  FusedSums(factors, terms, count, stride, sums, numel);
}

void Sums(const double* factors, const double* terms, int64_t count, int64_t stride, double* sums, int64_t numel) {
  std::fill_n(sums, numel, 0);
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t i = 0; i < numel; ++i) sums[i] += factors[k] * terms[k * stride + i];
  }
}

// Adds the elements `part`, which are in one row of the tile, to `weight`.
template <typename T>
absl::Status AddRow(const Tile<T>& tile, const LowRank& change, const Interval& part, int64_t width, DType dtype,
                    std::byte* weight) {
  const int64_t row = part.begin / width;
  const int64_t column = part.begin - row * width - tile.columns.begin;
  const T* const factors = &tile.left[(row - tile.rows.begin) * change.rank];
  for (int64_t begin = 0; begin < part.size(); begin += kColumns) {
    const int64_t numel = std::min(kColumns, part.size() - begin);
    std::array<T, kColumns> product;
    Sums(factors, &tile.right[column + begin], change.rank, tile.columns.size(), product.data(), numel);
    FSDP_RETURN_IF_ERROR(AddProduct(product.data(), change.scale, dtype, weight + begin * SizeOf(dtype), numel));
  }
  return absl::OkStatus();
}

template <typename T>
// Tiles are as large as memory allows for both factors, and go along rows first, so that rows of B are read once.
absl::Status AddTiles(const TensorSource& adapter, const LowRank& change, const Interval& interval, DType dtype,
                      std::byte* weight) {
  const int64_t width = change.is_transposed ? change.out : change.in;
  const int64_t most = std::max<int64_t>(1, kTileElements / change.rank);  // rows or columns of a tile
  const Interval rows = {interval.begin / width, (interval.end + width - 1) / width};
  // A part of one row needs only its own columns.
  const int64_t before = rows.begin * width;
  const Interval columns =
      rows.size() == 1 ? Interval{interval.begin - before, interval.end - before} : Interval{0, width};
  Tile<T> tile;
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
        FSDP_RETURN_IF_ERROR(AddRow(tile, change, part, width, dtype, to));
      }
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status AddScaledAs(const TensorSource& adapter, const StateKey& key, double scale, const Interval& interval,
                         DType dtype, std::byte* values) {
  const int64_t width = adapter.contents().FindTensor(key)->shape.numel();
  std::vector<T> read;
  for (int64_t begin = interval.begin; begin < interval.end; begin += kColumns) {
    const Interval part = {begin, std::min(begin + kColumns, interval.end)};
    FSDP_RETURN_IF_ERROR(ReadMatrix(adapter, key, width, {0, 1}, part, read));
    std::byte* const to = values + (begin - interval.begin) * SizeOf(dtype);
    FSDP_RETURN_IF_ERROR(AddProduct(read.data(), scale, dtype, to, part.size()));
  }
  return absl::OkStatus();
}

}  // namespace

// One float64 operand makes PyTorch compute in float64.
absl::Status AddLowRank(const TensorSource& adapter, const LowRank& change, const Interval& interval, DType dtype,
                        std::byte* weight) {
  if (interval.empty()) return absl::OkStatus();
  const bool is_wide = IsWide(dtype) || IsWide(DTypeOf(adapter, change.a)) || IsWide(DTypeOf(adapter, change.b));
  return is_wide ? AddTiles<double>(adapter, change, interval, dtype, weight)
                 : AddTiles<float>(adapter, change, interval, dtype, weight);
}

absl::Status AddScaled(const TensorSource& adapter, const StateKey& key, double scale, const Interval& interval,
                       DType dtype, std::byte* values) {
  const bool is_wide = IsWide(dtype) || IsWide(DTypeOf(adapter, key));
  return is_wide ? AddScaledAs<double>(adapter, key, scale, interval, dtype, values)
                 : AddScaledAs<float>(adapter, key, scale, interval, dtype, values);
}

}  // namespace fsdp
