// SPDX-License-Identifier: Apache-2.0
//
// Conv1d and Conv2d: convolutions as torch.nn.Conv1d and Conv2d compute them, with zero padding. (Conv1D of linear.h is
// Hugging Face's name for a linear layer.) Each image is unfolded into the columns that the kernels cover, followed by
// one matrix product for each group:
//
//   out [O, OH * OW] = weight [O, C * KH * KW] columns [C * KH * KW, OH * OW]
//
// Backward unfolds again instead of keeping the columns: memory is one image's columns.
#ifndef FSDP_NN_CONVOLUTION_H_
#define FSDP_NN_CONVOLUTION_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "fsdp/nn/module.h"
#include "fsdp/nn/ops/kernel_options.h"

namespace fsdp {

// The arguments of torch.nn.Conv2d; Conv1d ignores the first of each pair.
struct ConvolutionOptions {
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1;
  int64_t padding_h = 0, padding_w = 0;
  int64_t dilation_h = 1, dilation_w = 1;
  int64_t groups = 1;  // divides both numbers of channels
  bool bias = true;
  Initializer initializer = Initializer::Normal(0, 0.02f);  // of the weight; the bias begins as 0
};

// weight [out_channels, in_channels / groups, kernel_h, kernel_w], bias [out_channels]. Input [N, in_channels, H, W],
// output [N, out_channels, OH, OW]. Forward returns kInvalidArgument for options that are out of range.
class Conv2d final : public Module {
 public:
  explicit Conv2d(const ConvolutionOptions& options);

  std::string_view type_name() const override { return "Conv2d"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  const ConvolutionOptions options_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;  // may be null
};

// weight [out_channels, in_channels / groups, kernel_w], bias [out_channels]. Input [N, in_channels, L], output
// [N, out_channels, OL]. kernel_h, stride_h and dilation_h are 1 and padding_h 0.
class Conv1d final : public Module {
 public:
  explicit Conv1d(const ConvolutionOptions& options);

  std::string_view type_name() const override { return "Conv1d"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  const ConvolutionOptions options_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;  // may be null
};

}  // namespace fsdp

#endif  // FSDP_NN_CONVOLUTION_H_
