// SPDX-License-Identifier: Apache-2.0
//
// Both walk over the rows of `columns`: row (c, i, j) is the image of channel c, moved by (i, j). Fold adds each row to
// its channel in turn; in 16 bits it adds in a float32 copy of the channel, which is rounded after all its rows have
// been added.
#include "fsdp/nn/host/host_fold.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// Calls `visit(place, column)` for each element of a row (c, i, j) that is inside the image: its index in channel c,
// and its column.
template <typename F>
void ForEachInside(const ConvolutionShape& s, int64_t i, int64_t j, F visit) {
  const int64_t out_width = s.out_width(), out_height = s.out_height();
  for (int64_t y = 0; y < out_height; ++y) {
    const int64_t row = y * s.stride_h - s.padding_h + i * s.dilation_h;
    if (row < 0 || row >= s.height) continue;
    for (int64_t x = 0; x < out_width; ++x) {
      const int64_t col = x * s.stride_w - s.padding_w + j * s.dilation_w;
      if (col >= 0 && col < s.width) visit(row * s.width + col, y * out_width + x);
    }
  }
}

template <typename T>
void UnfoldAs(const T* image, const ConvolutionShape& s, T one, T* columns) {
  // The padding, which ForEachInside does not visit.
  std::fill(columns, columns + s.rows() * s.columns(), T{0});
  for (int64_t c = 0; c < s.channels; ++c, image += s.height * s.width) {
    for (int64_t i = 0; i < s.kernel_h; ++i) {
      for (int64_t j = 0; j < s.kernel_w; ++j, columns += s.columns()) {
        ForEachInside(s, i, j, [&](int64_t place, int64_t column) { columns[column] = image[place]; });
      }
    }
  }
  // `columns` is now behind the last row: the row of ones follows it.
  if (s.ones) std::fill(columns, columns + s.columns(), one);
}

template <typename T, typename Widen, typename Round>
void FoldAs(const T* columns, const ConvolutionShape& s, T* image, Widen widen, Round round) {
  // Float32 sums of one channel at a time, so that a 16-bit image is rounded once.
  std::vector<float> channel(s.height * s.width);
  for (int64_t c = 0; c < s.channels; ++c, image += s.height * s.width) {
    std::fill(channel.begin(), channel.end(), 0.0f);
    for (int64_t i = 0; i < s.kernel_h; ++i) {
      for (int64_t j = 0; j < s.kernel_w; ++j, columns += s.columns()) {
        ForEachInside(s, i, j, [&](int64_t place, int64_t column) { channel[place] += widen(columns[column]); });
      }
    }
    std::transform(channel.begin(), channel.end(), image, round);
  }
}

}  // namespace

void HostUnfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns) {
  if (image.dtype() == DType::kBFloat16) {
    UnfoldAs(image.data_as<const uint16_t>(), shape, FloatToBFloat16(1), columns.data_as<uint16_t>());
  } else if (image.dtype() == DType::kFloat16) {
    UnfoldAs(image.data_as<const uint16_t>(), shape, FloatToFloat16(1), columns.data_as<uint16_t>());
  } else {
    UnfoldAs(image.data_as<const float>(), shape, 1.0f, columns.data_as<float>());
  }
}

void HostFold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image) {
  if (image.dtype() == DType::kBFloat16) {
    FoldAs(columns.data_as<const uint16_t>(), shape, image.data_as<uint16_t>(), BFloat16ToFloat, FloatToBFloat16);
  } else if (image.dtype() == DType::kFloat16) {
    FoldAs(columns.data_as<const uint16_t>(), shape, image.data_as<uint16_t>(), Float16ToFloat, FloatToFloat16);
  } else {
    const auto same = [](float value) { return value; };
    FoldAs(columns.data_as<const float>(), shape, image.data_as<float>(), same, same);
  }
}

}  // namespace fsdp
