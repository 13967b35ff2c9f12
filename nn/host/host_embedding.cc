// SPDX-License-Identifier: Apache-2.0
//
// Backward sums, for each token that occurs, the rows of grad_out at its occurrences. The places are sorted by token,
// stably, so that each row of the table is touched once and its terms come in the order of the sequence: the order in
// which a loop over the sequence would have added them, without a float32 copy of the whole table.
#include "fsdp/nn/host/host_embedding.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/nn/host/host_column_sums.h"
#include "fsdp/nn/host/host_elementwise.h"

namespace fsdp {

absl::Status HostEmbedding(const Tensor& tokens, const Tensor& table, const Tensor& out) {
  const int64_t num_rows = table.shape().dim(0);
  const int64_t row_bytes = table.shape().dim(1) * SizeOf(table.dtype());
  for (int64_t n = 0; n < tokens.numel(); ++n) {
    const int32_t token = tokens.data_as<const int32_t>()[n];
    if (token < 0 || token >= num_rows) {
      return absl::OutOfRangeError(absl::StrCat("embedding: token ", token, " at index ", n, " of ", tokens.numel(),
                                                " is beyond the vocabulary of ", num_rows));
    }
    std::memcpy(static_cast<std::byte*>(out.data()) + n * row_bytes,
                static_cast<const std::byte*>(table.data()) + token * row_bytes, row_bytes);
  }
  return absl::OkStatus();
}

namespace {

// Rows to be added up to the gradient of one token. 16-bit rows are added as PyTorch does on a CPU, each sum rounded,
// but in runs that are short enough not to stall; their sums are added as float32.
class TokenSum {
 public:
  TokenSum(DType dtype, int64_t columns)
      : sums_(columns),
        bits_(dtype == DType::kFloat32 ? 0 : columns),
        run_(Buffer::Unowned(bits_.data(), static_cast<int64_t>(bits_.size() * sizeof(uint16_t))), dtype,
             {static_cast<int64_t>(dtype == DType::kFloat32 ? 0 : columns)}) {}

  void Add(const Tensor& row) {
    if (row.dtype() == DType::kFloat32) return sums_.Add(row.dtype(), row.data());
    HostAdd(run_, row, run_);
    if (++rows_in_run_ == kRowsPerRun) EndRun();
  }

  void AddTo(const Tensor& grad) {
    if (rows_in_run_ > 0) EndRun();
    sums_.AddTo(grad);
  }

 private:
  static constexpr int kRowsPerRun = 256;  // at 256 equal terms a sum exhausts bfloat16's precision

  void EndRun() {
    sums_.Add(run_.dtype(), bits_.data());
    std::fill(bits_.begin(), bits_.end(), uint16_t{0});
    rows_in_run_ = 0;
  }

  ColumnSums sums_;
  std::vector<uint16_t> bits_;
  Tensor run_;  // over bits_
  int rows_in_run_ = 0;
};

}  // namespace

void HostEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                           const Tensor& grad_table) {
  const int64_t columns = grad_table.shape().dim(1);
  const auto* token = tokens.data_as<const int32_t>();
  std::vector<int64_t> order(tokens.numel());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [token](int64_t a, int64_t b) { return token[a] < token[b]; });
  for (size_t begin = 0; begin < order.size();) {
    const int32_t row = token[order[begin]];
    TokenSum sum(grad_out.dtype(), columns);
    for (; begin < order.size() && token[order[begin]] == row; ++begin) {
      sum.Add(grad_out.Slice({order[begin] * columns, (order[begin] + 1) * columns}));
    }
    if (row != padding_idx) sum.AddTo(grad_table.Slice({row * columns, (row + 1) * columns}));
  }
}

}  // namespace fsdp
