// SPDX-License-Identifier: Apache-2.0
//
// Called: a module of LibTorch whose forward is a CallUnit (unit_call.h), for containers that call their children
// themselves, by the class that they were given, as torch::nn::Sequential does:
//
//   torch::nn::Sequential net(Called<Block>(512), torch::nn::ReLU(), Called<torch::nn::Linear>(512, 10));
//
// Its units can have output_dtype and activation_checkpointing. The names of its parameters and of its class are the
// same as without Called, and IsAnyTorch<BlockImpl>() holds for it. A container that calls a child by the name of the
// child's own class bypasses it (torch::nn::TransformerEncoder does so with its layers: forward is not virtual).
#ifndef FSDP_LIBTORCH_CALLED_MODULE_H_
#define FSDP_LIBTORCH_CALLED_MODULE_H_

#include <torch/nn/pimpl.h>

#include "fsdp/libtorch/unit_call.h"

namespace fsdp {

// Called's module; constructed as Impl is. clone() makes an Impl.
template <typename Impl, typename Forward = decltype(&Impl::forward)>
class CalledImpl;

template <typename Impl, typename Class, typename Output, typename... Inputs>
class CalledImpl<Impl, Output (Class::*)(Inputs...)> final : public Impl {
 public:
  using Impl::Impl;
  Output forward(Inputs... inputs) { return CallUnit(static_cast<Impl&>(*this), inputs...); }
};

// A module holder, as TORCH_MODULE declares it.
template <typename Holder>
using Called = torch::nn::ModuleHolder<CalledImpl<typename Holder::ContainedType>>;

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_CALLED_MODULE_H_
