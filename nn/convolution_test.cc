// SPDX-License-Identifier: Apache-2.0
//
// Conv1d and Conv2d against plain loops. Values are small whole numbers, so every sum is exact in both dtypes' products
// and equality is `==`.
#include "fsdp/nn/convolution.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

Doubles WholeNumbers(int64_t n, int seed) {
  Doubles values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<double>((i * 7 + seed * 5) % 5 - 2);
  return values;
}

// The taps of a convolution: calls `visit(x, w, out)` with the places in input, weight and output of each product.
template <typename F>
void ForEachTap(const ConvolutionOptions& o, int64_t batch, int64_t height, int64_t width, F visit) {
  const int64_t oh = (height + 2 * o.padding_h - o.dilation_h * (o.kernel_h - 1) - 1) / o.stride_h + 1;
  const int64_t ow = (width + 2 * o.padding_w - o.dilation_w * (o.kernel_w - 1) - 1) / o.stride_w + 1;
  const int64_t in_group = o.in_channels / o.groups, out_group = o.out_channels / o.groups;
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t out = 0; out < o.out_channels; ++out) {
      for (int64_t y = 0; y < oh; ++y) {
        for (int64_t x = 0; x < ow; ++x) {
          for (int64_t c = 0; c < in_group; ++c) {
            for (int64_t i = 0; i < o.kernel_h; ++i) {
              for (int64_t j = 0; j < o.kernel_w; ++j) {
                const int64_t row = y * o.stride_h - o.padding_h + i * o.dilation_h;
                const int64_t col = x * o.stride_w - o.padding_w + j * o.dilation_w;
                if (row < 0 || row >= height || col < 0 || col >= width) continue;
                const int64_t channel = out / out_group * in_group + c;
                visit(((n * o.in_channels + channel) * height + row) * width + col,
                      ((out * in_group + c) * o.kernel_h + i) * o.kernel_w + j,
                      ((n * o.out_channels + out) * oh + y) * ow + x);
              }
            }
          }
        }
      }
    }
  }
}

class ConvolutionTest : public testing::Test {
 protected:
  // Parameters of whole numbers, and gradients of 1 to begin with, since backward adds.
  void Fill(Module& module, DType dtype) {
    for (const auto& [name, parameter] : module.NamedParameters()) {
      parameter->data = TestTensor(dtype, parameter->shape, WholeNumbers(parameter->shape.numel(), 3));
      parameter->grad = TestTensor(dtype, parameter->shape, Doubles(parameter->shape.numel(), 1));
    }
  }

  void ExpectPlainLoops(Module& module, const ConvolutionOptions& o, int64_t batch, int64_t height, int64_t width,
                        const Shape& in_shape, DType dtype) {
    Fill(module, dtype);
    const Doubles x = WholeNumbers(in_shape.numel(), 1);
    const Doubles w = ValuesOf(module.own_parameters()[0].second->data);
    Tape tape(*stream_, *ops_);
    const absl::StatusOr<Tensor> out = module.Forward(TestTensor(dtype, in_shape, x), tape);
    ASSERT_OK(out);
    const Doubles grad_out = WholeNumbers(out->numel(), 2);
    const absl::StatusOr<Tensor> grad_x = module.Backward(TestTensor(dtype, out->shape(), grad_out), tape);
    ASSERT_OK(grad_x);
    ASSERT_OK(stream_->Synchronize());

    Doubles wanted(out->numel()), wanted_x(x.size()), wanted_w(w.size(), 1), wanted_b(o.out_channels, 1);
    const int64_t per_channel = out->numel() / (batch * o.out_channels);
    for (int64_t i = 0; i < out->numel(); ++i) {
      const int64_t channel = i / per_channel % o.out_channels;
      if (o.bias) wanted[i] = ValuesOf(module.own_parameters()[1].second->data)[channel];
      wanted_b[channel] += grad_out[i];
    }
    ForEachTap(o, batch, height, width, [&](int64_t at_x, int64_t at_w, int64_t at_out) {
      wanted[at_out] += x[at_x] * w[at_w];
      wanted_x[at_x] += grad_out[at_out] * w[at_w];
      wanted_w[at_w] += grad_out[at_out] * x[at_x];
    });
    EXPECT_EQ(ValuesOf(*out), wanted);
    EXPECT_EQ(ValuesOf(*grad_x), wanted_x);
    EXPECT_EQ(ValuesOf(module.own_parameters()[0].second->grad), wanted_w);
    if (o.bias) {
      EXPECT_EQ(ValuesOf(module.own_parameters()[1].second->grad), wanted_b);
    }
  }

  absl::Status ForwardOf(const ConvolutionOptions& options, const Shape& shape) {
    Conv2d layer(options);
    Tape tape(*stream_, *ops_);
    return layer.Forward(TestTensor(DType::kFloat32, shape, Doubles(shape.numel(), 1)), tape).status();
  }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_F(ConvolutionTest, TwoDimensionsAreThoseOfPlainLoops) {
  const std::vector<ConvolutionOptions> all = {
      {.in_channels = 3, .out_channels = 2, .kernel_h = 3, .kernel_w = 3, .padding_h = 1, .padding_w = 1},
      {.in_channels = 1, .out_channels = 5, .kernel_h = 1, .kernel_w = 1, .bias = false},
      {.in_channels = 4, .out_channels = 6, .kernel_h = 2, .kernel_w = 3, .stride_h = 2, .stride_w = 3, .groups = 2},
      {.in_channels = 3,
       .out_channels = 3,
       .kernel_h = 3,
       .kernel_w = 2,
       .padding_h = 2,
       .padding_w = 3,
       .dilation_h = 2,
       .dilation_w = 3,
       .groups = 3},
  };
  for (const ConvolutionOptions& options : all) {
    for (const DType dtype : ActivationDTypes()) {
      SCOPED_TRACE(testing::Message() << options.kernel_h << " x " << options.kernel_w << " " << DTypeName(dtype));
      Conv2d layer(options);
      ExpectPlainLoops(layer, options, 2, 5, 7, {2, options.in_channels, 5, 7}, dtype);
    }
  }
}

TEST_F(ConvolutionTest, OneDimensionIsThatOfPlainLoops) {
  const ConvolutionOptions options = {
      .in_channels = 4, .out_channels = 2, .kernel_w = 3, .stride_w = 2, .padding_w = 2, .dilation_w = 2, .groups = 2};
  Conv1d layer(options);
  EXPECT_EQ(layer.own_parameters()[0].second->shape, Shape({2, 2, 3}));
  ExpectPlainLoops(layer, options, 3, 1, 9, {3, 4, 9}, DType::kFloat32);
}

TEST_F(ConvolutionTest, AFrozenWeightGetsNoGradient) {
  const ConvolutionOptions options = {.in_channels = 2, .out_channels = 2, .kernel_h = 2, .kernel_w = 2};
  Conv2d layer(options);
  Fill(layer, DType::kFloat32);
  Parameter& weight = *layer.own_parameters()[0].second;
  weight.requires_grad = false;
  weight.grad = Tensor();
  Tape tape(*stream_, *ops_);
  ASSERT_OK(layer.Forward(TestTensor(DType::kFloat32, {1, 2, 3, 3}, WholeNumbers(18, 1)), tape));
  ASSERT_OK(layer.Backward(TestTensor(DType::kFloat32, {1, 2, 2, 2}, WholeNumbers(8, 1)), tape));
  EXPECT_OK(stream_->Synchronize());
}

TEST_F(ConvolutionTest, OptionsAndInputsThatAreWrongAreNamed) {
  EXPECT_THAT(ForwardOf({.in_channels = 3, .out_channels = 4, .groups = 2}, {1, 3, 2, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("conv2d: 3 and 4 channels in 2 groups")));
  EXPECT_THAT(ForwardOf({.in_channels = 3, .out_channels = 4, .stride_w = 0}, {1, 3, 2, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stride or dilation is below 1")));
  EXPECT_THAT(ForwardOf({.in_channels = 3, .out_channels = 4, .padding_w = -1}, {1, 3, 2, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a padding is below 0")));
  EXPECT_THAT(ForwardOf({.in_channels = 3, .out_channels = 4}, {1, 2, 2, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("input [1, 2, 2, 2] != wanted [N, 3, H, W]")));
  EXPECT_THAT(ForwardOf({.in_channels = 3, .out_channels = 4, .kernel_h = 3}, {1, 3, 2, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a kernel of 3 x 1 does not fit")));
}

}  // namespace
}  // namespace fsdp
