// SPDX-License-Identifier: Apache-2.0
#include "nn/host_embedding.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nn/host_column_sums.h"

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

void HostEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                           const Tensor& grad_table) {
  const int64_t columns = grad_table.shape().dim(1);
  const auto* token = tokens.data_as<const int32_t>();
  std::vector<int64_t> order(tokens.numel());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [token](int64_t a, int64_t b) { return token[a] < token[b]; });
  const int64_t row_bytes = columns * SizeOf(grad_out.dtype());
  for (size_t begin = 0; begin < order.size();) {
    const int32_t row = token[order[begin]];
    ColumnSums sums(columns);
    for (; begin < order.size() && token[order[begin]] == row; ++begin) {
      sums.Add(grad_out.dtype(), static_cast<const std::byte*>(grad_out.data()) + order[begin] * row_bytes);
    }
    if (row != padding_idx) sums.AddTo(grad_table.Slice({row * columns, (row + 1) * columns}));
  }
}

}  // namespace fsdp
