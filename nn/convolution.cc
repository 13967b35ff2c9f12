// SPDX-License-Identifier: Apache-2.0
//
// For each image and group: columns = Unfold(x), out = W columns + b ones. The bias is a product too, of [O, 1] with
// the row of ones that Unfold adds, so that its gradient is a product with the transposed row. Backward: grad_W +=
// grad_out columns^T, grad_b += grad_out ones^T, grad_x = Fold(W^T grad_out). Images follow each other, so that sums
// over a batch have a fixed order.
#include "fsdp/nn/convolution.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

absl::Status CheckOptions(std::string_view layer, const ConvolutionOptions& o) {
  const auto fail = [&](const std::string& problem) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(layer), ": ", problem));
  };
  if (o.groups < 1 || o.in_channels < 1 || o.out_channels < 1 || o.in_channels % o.groups != 0 ||
      o.out_channels % o.groups != 0) {
    return fail(absl::StrCat(o.in_channels, " and ", o.out_channels, " channels in ", o.groups,
                             " groups, expected at least 1 of each and groups that divide both"));
  }
  if (o.kernel_h < 1 || o.kernel_w < 1 || o.stride_h < 1 || o.stride_w < 1 || o.dilation_h < 1 || o.dilation_w < 1) {
    return fail("a kernel, stride or dilation is below 1");
  }
  return o.padding_h < 0 || o.padding_w < 0 ? fail("a padding is below 0") : absl::OkStatus();
}

// `numel` elements from `index * numel` on.
Tensor Part(const Tensor& t, int64_t index, int64_t numel, Shape shape) {
  return t.Slice({index * numel, (index + 1) * numel}).View(std::move(shape));
}

// One layer's convolution of a batch; tensors of two dimensions are images of height 1.
class Convolution {
 public:
  Convolution(std::string_view layer, const ConvolutionOptions& options, Tape& tape)
      : layer_(layer), options_(options), tape_(tape) {}

  // The sizes from the input's shape, of rank 4, or 3 for an image of height 1.
  absl::Status SetSizes(const Tensor& x, size_t rank) {
    FSDP_RETURN_IF_ERROR(CheckOptions(layer_, options_));
    if (!x.defined() || static_cast<size_t>(x.shape().rank()) != rank || x.shape().dim(1) != options_.in_channels) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(layer_), ": input ", x.defined() ? x.shape().ToString() : "undefined",
                       " != wanted [N, ", options_.in_channels, rank == 4 ? ", H, W]" : ", L]"));
    }
    batch_ = x.shape().dim(0);
    shape_ = {.channels = options_.in_channels / options_.groups,
              .height = rank == 4 ? x.shape().dim(2) : 1,
              .width = x.shape().dim(static_cast<int>(rank) - 1),
              .kernel_h = options_.kernel_h,
              .kernel_w = options_.kernel_w,
              .stride_h = options_.stride_h,
              .stride_w = options_.stride_w,
              .padding_h = options_.padding_h,
              .padding_w = options_.padding_w,
              .dilation_h = options_.dilation_h,
              .dilation_w = options_.dilation_w,
              // One more row of ones in the columns: the product with it adds the bias, and its transpose sums the bias
              // gradient.
              .ones = options_.bias};
    if (shape_.columns() > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(std::string(layer_), ": a kernel of ", options_.kernel_h, " x ",
                                                   options_.kernel_w, " does not fit into an input of ",
                                                   x.shape().ToString(), " with its padding"));
  }

  Shape OutputShape(size_t rank) const {
    if (rank == 4) return {batch_, options_.out_channels, shape_.out_height(), shape_.out_width()};
    return {batch_, options_.out_channels, shape_.out_width()};
  }

  absl::Status Forward(const Tensor& x, Parameter& weight, Parameter* bias, const Tensor& out) {
    FSDP_ASSIGN_OR_RETURN(const Tensor w, weight.Data());
    Tensor b;
    if (bias != nullptr) {
      FSDP_ASSIGN_OR_RETURN(b, bias->Data());
    }
    FSDP_RETURN_IF_ERROR(MakeColumns(x.dtype()));
    // One part at a time reuses one buffer of columns, so that memory does not grow with the batch.
    for (int64_t part = 0; part < batch_ * options_.groups; ++part) {
      const int64_t group = part % options_.groups;
      Unfold(x, part);
      const Tensor to = OutPart(out, part);
      Multiply(WeightOf(w, group), Taps(), to, {});
      if (bias != nullptr) Multiply(BiasOf(b, group), Ones(), to, {.accumulate = true});
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const Tensor& x, const Tensor& grad_out, Parameter& weight, Parameter* bias,
                        const Tensor& grad_x) {
    FSDP_ASSIGN_OR_RETURN(const Tensor w, weight.Data());
    ParameterGrad grad_w, grad_b;
    if (weight.requires_grad) {
      FSDP_ASSIGN_OR_RETURN(grad_w, GradOf(weight));
    }
    if (bias != nullptr && bias->requires_grad) {
      FSDP_ASSIGN_OR_RETURN(grad_b, GradOf(*bias));
    }
    FSDP_RETURN_IF_ERROR(MakeColumns(x.dtype()));
    for (int64_t part = 0; part < batch_ * options_.groups; ++part) {
      const int64_t group = part % options_.groups;
      const Tensor grad = OutPart(grad_out, part);
      // Only the parameters' gradients read the columns; grad_x overwrites them below.
      if (grad_w.defined() || grad_b.defined()) Unfold(x, part);
      const auto add = [&](const ParameterGrad& to) {  // the other images' products follow the first one's
        return MatmulOptions{.transpose_b = true, .accumulate = to.accumulate || part >= options_.groups};
      };
      if (grad_w.defined()) Multiply(grad, Taps(), WeightOf(grad_w.grad, group), add(grad_w));
      if (grad_b.defined()) Multiply(grad, Ones(), BiasOf(grad_b.grad, group), add(grad_b));
      Multiply(WeightOf(w, group), grad, Taps(), {.transpose_a = true});
      tape_.ops().Fold(Taps(), shape_, Part(grad_x, part, shape_.image_numel(), {shape_.image_numel()}),
                       tape_.stream());
    }
    return absl::OkStatus();
  }

 private:
  // Without images there is no product that could write it.
  absl::StatusOr<ParameterGrad> GradOf(Parameter& parameter) const {
    if (batch_ > 0) return parameter.GradToWrite();
    FSDP_ASSIGN_OR_RETURN(Tensor zeroed, parameter.Grad());
    return ParameterGrad(std::move(zeroed));
  }

  absl::Status MakeColumns(DType dtype) {
    FSDP_ASSIGN_OR_RETURN(columns_, tape_.Empty(dtype, {shape_.rows() + (shape_.ones ? 1 : 0), shape_.columns()}));
    return absl::OkStatus();
  }

  void Unfold(const Tensor& x, int64_t part) {
    tape_.ops().Unfold(Part(x, part, shape_.image_numel(), {shape_.image_numel()}), shape_, columns_, tape_.stream());
  }

  void Multiply(const Tensor& a, const Tensor& b, const Tensor& c, const MatmulOptions& options) {
    tape_.ops().Matmul(a, b, Tensor(), c, options, tape_.stream());
  }

  int64_t OutChannels() const { return options_.out_channels / options_.groups; }
  // columns_ in two parts: all rows but the last, and the row of ones.
  Tensor Taps() const { return Part(columns_, 0, shape_.rows() * shape_.columns(), {shape_.rows(), shape_.columns()}); }
  Tensor Ones() const { return Part(columns_, shape_.rows(), shape_.columns(), {1, shape_.columns()}); }
  Tensor OutPart(const Tensor& t, int64_t part) const {
    return Part(t, part, OutChannels() * shape_.columns(), {OutChannels(), shape_.columns()});
  }
  Tensor WeightOf(const Tensor& t, int64_t group) const {
    return Part(t, group, OutChannels() * shape_.rows(), {OutChannels(), shape_.rows()});
  }
  Tensor BiasOf(const Tensor& t, int64_t group) const { return Part(t, group, OutChannels(), {OutChannels(), 1}); }

  const std::string_view layer_;
  const ConvolutionOptions& options_;
  Tape& tape_;
  int64_t batch_ = 0;
  ConvolutionShape shape_;  // of one group of one image
  Tensor columns_;          // of the part at hand; work on the stream follows itself
};

absl::StatusOr<Tensor> ForwardOf(std::string_view layer, const ConvolutionOptions& options, size_t rank,
                                 const Tensor& x, Parameter& weight, Parameter* bias, Tape& tape) {
  Convolution convolution(layer, options, tape);
  FSDP_RETURN_IF_ERROR(convolution.SetSizes(x, rank));
  FSDP_ASSIGN_OR_RETURN(Tensor out, tape.Empty(x.dtype(), convolution.OutputShape(rank)));
  FSDP_RETURN_IF_ERROR(convolution.Forward(x, weight, bias, out));
  tape.Save(x);
  return out;
}

absl::StatusOr<Tensor> BackwardOf(std::string_view layer, const ConvolutionOptions& options, size_t rank,
                                  const Tensor& grad_output, Parameter& weight, Parameter* bias, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(const Tensor x, tape.Restore());
  Convolution convolution(layer, options, tape);
  FSDP_RETURN_IF_ERROR(convolution.SetSizes(x, rank));
  const Shape wanted = convolution.OutputShape(rank);
  if (!grad_output.defined() || grad_output.shape() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(layer), " backward: grad_output ",
                                                   grad_output.defined() ? grad_output.shape().ToString() : "undefined",
                                                   " != wanted ", wanted.ToString()));
  }
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, tape.Empty(x.dtype(), x.shape()));
  FSDP_RETURN_IF_ERROR(convolution.Backward(x, grad_output, weight, bias, grad_x));
  return grad_x;
}

// Clamped, because a Shape needs nonnegative sizes even if Forward will refuse the options.
int64_t ChannelsOfAGroup(const ConvolutionOptions& o) { return o.groups < 1 ? 0 : o.in_channels / o.groups; }

}  // namespace

Conv2d::Conv2d(const ConvolutionOptions& options)
    : options_(options),
      weight_(AddParameter("weight",
                           {options.out_channels, ChannelsOfAGroup(options), options.kernel_h, options.kernel_w},
                           options.initializer)),
      bias_(options.bias ? AddParameter("bias", {options.out_channels}, Initializer::Constant(0)) : nullptr) {}

absl::StatusOr<Tensor> Conv2d::DoForward(const Tensor& x, Tape& tape) {
  return ForwardOf("conv2d", options_, 4, x, *weight_, bias_.get(), tape);
}

absl::StatusOr<Tensor> Conv2d::DoBackward(const Tensor& grad_output, Tape& tape) {
  return BackwardOf("conv2d", options_, 4, grad_output, *weight_, bias_.get(), tape);
}

Conv1d::Conv1d(const ConvolutionOptions& options)
    : options_(options),
      weight_(AddParameter("weight", {options.out_channels, ChannelsOfAGroup(options), options.kernel_w},
                           options.initializer)),
      bias_(options.bias ? AddParameter("bias", {options.out_channels}, Initializer::Constant(0)) : nullptr) {}

absl::StatusOr<Tensor> Conv1d::DoForward(const Tensor& x, Tape& tape) {
  return ForwardOf("conv1d", options_, 3, x, *weight_, bias_.get(), tape);
}

absl::StatusOr<Tensor> Conv1d::DoBackward(const Tensor& grad_output, Tape& tape) {
  return BackwardOf("conv1d", options_, 3, grad_output, *weight_, bias_.get(), tape);
}

}  // namespace fsdp
