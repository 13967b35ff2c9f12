// SPDX-License-Identifier: Apache-2.0
//
// One thread for each element that is written. Fold gathers instead of scattering: the thread of an image element
// looks, for each place of the kernel, for the column that took the element from there. So no two threads add to one
// element, and each sum is in the order of the rows.

#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_fold.h"

namespace fsdp {
namespace {

// ConvolutionShape's fields as a trivial struct, with the sizes that it computes.
struct Sizes {
  int64_t channels, height, width, kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w,
      out_height, out_width;
};

Sizes SizesOf(const ConvolutionShape& s) {
  return {s.channels,  s.height,    s.width,      s.kernel_h,   s.kernel_w,     s.stride_h,   s.stride_w,
          s.padding_h, s.padding_w, s.dilation_h, s.dilation_w, s.out_height(), s.out_width()};
}

template <typename F>
__device__ void ForEachElement(int64_t numel, F body) {
  // A grid has fewer threads than a large image has elements, so each thread takes several.
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < numel; i += step) body(i);
}

// Every element is written, also the zeros of the padding: `columns` is reused memory.
template <typename T>
__global__ void Unfold(const T* image, Sizes s, T* columns, int64_t numel) {
  ForEachElement(numel, [&](int64_t at) {
    const int64_t x = at % s.out_width, y = at / s.out_width % s.out_height;
    const int64_t row = at / (s.out_width * s.out_height);
    if (row == s.channels * s.kernel_h * s.kernel_w) {  // the row of ones
      columns[at] = Round<T>(1.0f);
      return;
    }
    const int64_t j = row % s.kernel_w, i = row / s.kernel_w % s.kernel_h, c = row / (s.kernel_w * s.kernel_h);
    const int64_t from_y = y * s.stride_h - s.padding_h + i * s.dilation_h;
    const int64_t from_x = x * s.stride_w - s.padding_w + j * s.dilation_w;
    const bool inside = from_y >= 0 && from_y < s.height && from_x >= 0 && from_x < s.width;
    columns[at] = inside ? image[(c * s.height + from_y) * s.width + from_x] : Round<T>(0.0f);
  });
}

// The output position that takes `at` from place `k` of the kernel, or -1.
__device__ int64_t TakenBy(int64_t at, int64_t k, int64_t stride, int64_t padding, int64_t dilation, int64_t out_size) {
  const int64_t offset = at + padding - k * dilation;
  return offset >= 0 && offset % stride == 0 && offset / stride < out_size ? offset / stride : -1;
}

template <typename T>
__global__ void Fold(const T* columns, Sizes s, T* image, int64_t numel) {
  ForEachElement(numel, [&](int64_t at) {
    const int64_t col = at % s.width, row = at / s.width % s.height, c = at / (s.width * s.height);
    // In float32, rounded once at the end, and in the host's order of rows.
    float sum = 0;
    for (int64_t i = 0; i < s.kernel_h; ++i) {
      const int64_t y = TakenBy(row, i, s.stride_h, s.padding_h, s.dilation_h, s.out_height);
      for (int64_t j = 0; y >= 0 && j < s.kernel_w; ++j) {
        const int64_t x = TakenBy(col, j, s.stride_w, s.padding_w, s.dilation_w, s.out_width);
        if (x < 0) continue;
        const int64_t from = (c * s.kernel_h + i) * s.kernel_w + j;
        sum += Widen<float>(columns[(from * s.out_height + y) * s.out_width + x]);
      }
    }
    image[at] = Round<T>(sum);
  });
}

}  // namespace

void CudaUnfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns, CUstream_st* stream) {
  if (columns.numel() == 0) return;
  WithActivationType(image.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    Launch(Unfold<T>, Blocks(columns.numel()), kThreads, 0, stream, static_cast<const T*>(image.data()), SizesOf(shape),
           static_cast<T*>(columns.data()), columns.numel());
  });
}

void CudaFold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image, CUstream_st* stream) {
  if (image.numel() == 0) return;
  WithActivationType(image.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    Launch(Fold<T>, Blocks(image.numel()), kThreads, 0, stream, static_cast<const T*>(columns.data()), SizesOf(shape),
           static_cast<T*>(image.data()), image.numel());
  });
}

}  // namespace fsdp
