// SPDX-License-Identifier: Apache-2.0
//
// A unit of float32, bfloat16 and float16 parameters against the outputs and gradients of PyTorch 2.11's fully_shard
// (testdata/make_mixed_dtypes.py), bit for bit.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/ops.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using nlohmann::json;

// As `pattern` of the script.
std::vector<float> Pattern(int64_t numel, int seed, float scale, float offset = 0) {
  std::vector<float> values(numel);
  for (int64_t i = 0; i < numel; ++i) values[i] = static_cast<float>((i * 7 + seed * 5) % 11 - 5) * scale + offset;
  return values;
}

// As `Block` of the script. Parameters are on the host.
class MixedBlock final : public Module {
 public:
  static absl::StatusOr<std::unique_ptr<MixedBlock>> Make(Device& device) {
    auto block = std::make_unique<MixedBlock>();
    std::vector<float> codes(4 * 5);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<float>((i * 5 + 3) % 16);
    FSDP_RETURN_IF_ERROR(Fill(*block->base_, DType::kBFloat16, false, Pattern(15, 1, 0x1p-3f), device));
    FSDP_RETURN_IF_ERROR(Fill(*block->adapter_, DType::kFloat32, true, Pattern(15, 2, 0x1p-4f, 0x1p-11f), device));
    FSDP_RETURN_IF_ERROR(Fill(*block->router_, DType::kFloat32, true, Pattern(25, 3, 0x1p-3f, 0x1p-11f), device));
    FSDP_RETURN_IF_ERROR(Fill(*block->codes_, DType::kFloat16, false, codes, device));
    FSDP_RETURN_IF_ERROR(Fill(*block->head_, DType::kFloat32, true, Pattern(20, 4, 0x1p-3f), device));
    block->AssignNames();
    return block;
  }
  std::string_view type_name() const override { return "MixedBlock"; }

 private:
  static absl::Status Fill(Parameter& parameter, DType dtype, bool requires_grad, const std::vector<float>& values,
                           Device& device) {
    parameter.dtype = dtype;
    parameter.requires_grad = requires_grad;
    FSDP_ASSIGN_OR_RETURN(parameter.data, Tensor::Empty(device, dtype, parameter.shape));
    return Convert(DType::kFloat32, values.data(), dtype, parameter.data.data(), parameter.shape.numel());
  }

  static absl::StatusOr<Tensor> Cast(const Tensor& t, DType dtype, Tape& tape) {
    FSDP_ASSIGN_OR_RETURN(const Tensor cast, tape.Empty(dtype, t.shape()));
    tape.device().ops().CastDivide(t, cast, 1, tape.stream());
    return cast;
  }

  // x W^T.
  static absl::StatusOr<Tensor> Times(const Tensor& x, const Tensor& w, Tape& tape) {
    FSDP_ASSIGN_OR_RETURN(const Tensor y, tape.Empty(x.dtype(), {x.shape().dim(0), w.shape().dim(0)}));
    tape.ops().Matmul(x, w, Tensor(), y, {.transpose_b = true}, tape.stream());
    return y;
  }

  // grad W, and weight's gradient += grad^T x.
  static absl::StatusOr<Tensor> Back(const Tensor& grad, const Tensor& x, const Tensor& w, Parameter* weight,
                                     Tape& tape) {
    if (weight != nullptr) {
      FSDP_ASSIGN_OR_RETURN(const Tensor grad_weight, weight->Grad());
      tape.ops().Matmul(grad, x, Tensor(), grad_weight, {.transpose_a = true, .accumulate = true}, tape.stream());
    }
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_x, tape.Empty(x.dtype(), x.shape()));
    tape.ops().Matmul(grad, w, Tensor(), grad_x, {}, tape.stream());
    return grad_x;
  }

  // (codes - 8) / 4 in the dtype of activations: exact.
  absl::StatusOr<Tensor> Dequantised(DType dtype, Tape& tape) const {
    FSDP_ASSIGN_OR_RETURN(const Tensor codes, codes_->Data());
    FSDP_ASSIGN_OR_RETURN(const Tensor wide, Cast(codes, DType::kFloat32, tape));
    tape.stream().Run([wide] {
      for (int64_t i = 0; i < wide.numel(); ++i) wide.data_as<float>()[i] = (wide.data_as<float>()[i] - 8) * 0.25f;
      return absl::OkStatus();
    });
    return Cast(wide, dtype, tape);
  }

  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(const Tensor base, base_->Data());
    FSDP_ASSIGN_OR_RETURN(const Tensor adapter, adapter_->Data());
    FSDP_ASSIGN_OR_RETURN(const Tensor router, router_->Data());
    FSDP_ASSIGN_OR_RETURN(const Tensor head, head_->Data());
    FSDP_ASSIGN_OR_RETURN(const Tensor sum, Times(x, base, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor adapted, Times(x, adapter, tape));
    tape.ops().Add(sum, adapted, sum, tape.stream());
    FSDP_ASSIGN_OR_RETURN(const Tensor wide, Cast(sum, router.dtype(), tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor routed, Times(wide, router, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor h, Cast(routed, x.dtype(), tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor codes, Dequantised(x.dtype(), tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor y, Times(h, codes, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor through_head, Times(h, head, tape));
    tape.ops().Add(y, through_head, y, tape.stream());
    tape.Save(x);
    tape.Save(wide);
    tape.Save(h);
    return y;
  }

  absl::StatusOr<Tensor> DoBackward(const Tensor& grad, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(const Tensor h, tape.Restore());
    FSDP_ASSIGN_OR_RETURN(const Tensor wide, tape.Restore());
    FSDP_ASSIGN_OR_RETURN(const Tensor x, tape.Restore());
    FSDP_ASSIGN_OR_RETURN(const Tensor router, router_->Data());
    FSDP_ASSIGN_OR_RETURN(const Tensor head, head_->Data());
    FSDP_ASSIGN_OR_RETURN(const Tensor codes, Dequantised(x.dtype(), tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_h, Back(grad, h, codes, nullptr, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor through_head, Back(grad, h, head, head_.get(), tape));
    tape.ops().Add(grad_h, through_head, grad_h, tape.stream());
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_routed, Cast(grad_h, router.dtype(), tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_wide, Back(grad_routed, wide, router, router_.get(), tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_sum, Cast(grad_wide, x.dtype(), tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor adapter, adapter_->Data());
    return Back(grad_sum, x, adapter, adapter_.get(), tape);  // its input has no gradient in the script
  }

  const std::shared_ptr<Parameter> base_ = AddParameter("base", {5, 3}, Initializer::Constant(0));
  const std::shared_ptr<Parameter> adapter_ = AddParameter("adapter", {5, 3}, Initializer::Constant(0));
  const std::shared_ptr<Parameter> router_ = AddParameter("router", {5, 5}, Initializer::Constant(0));
  const std::shared_ptr<Parameter> codes_ = AddParameter("codes", {4, 5}, Initializer::Constant(0));
  const std::shared_ptr<Parameter> head_ = AddParameter("head", {4, 5}, Initializer::Constant(0));
};

absl::StatusOr<std::vector<float>> Step(MixedBlock& block, FsdpModule& root, int rank, int step) {
  FSDP_ASSIGN_OR_RETURN(Tape tape, root.NewTape());
  FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(tape.device(), DType::kFloat32, {2, 3}));
  for (int i = 0; i < 6; ++i) x.data_as<float>()[i] = 0.25f * static_cast<float>((rank + 1) * (i - 2) + step);
  FSDP_ASSIGN_OR_RETURN(const Tensor y, block.Forward(x, tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor wide, tape.Empty(DType::kFloat32, y.shape()));
  tape.device().ops().CastDivide(y, wide, 1, tape.stream());
  FSDP_ASSIGN_OR_RETURN(const Tensor ones, tape.Empty(DType::kFloat32, y.shape()));
  std::fill_n(ones.data_as<float>(), ones.numel(), static_cast<float>(rank + 1));
  FSDP_ASSIGN_OR_RETURN(const Tensor grad, tape.Empty(y.dtype(), y.shape()));
  tape.device().ops().CastDivide(ones, grad, 1, tape.stream());
  FSDP_RETURN_IF_ERROR(block.Backward(grad, tape).status());
  FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
  return std::vector<float>(wide.data_as<float>(), wide.data_as<float>() + wide.numel());
}

absl::Status ExpectGolden(const json& golden, std::shared_ptr<ProcessGroup> group) {
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<MixedBlock> block, MixedBlock::Make(*group->device()));
  FullyShardOptions options;
  options.mp_policy.param_dtype = DType::kBFloat16;
  FSDP_ASSIGN_OR_RETURN(options.mp_policy.reduce_dtype, ParseDType(golden["reduce_dtype"].get<std::string>()));
  FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(*block, mesh, options));
  for (int step = 0; step < 2; ++step) {
    FSDP_ASSIGN_OR_RETURN(const std::vector<float> output, Step(*block, *root, group->rank(), step));
    EXPECT_EQ(output, golden["outputs"][group->rank()][step].get<std::vector<float>>()) << golden["name"];
  }
  for (const auto& [name, values] : golden["gradients"].items()) {
    FSDP_ASSIGN_OR_RETURN(const Tensor gradient, root->GetFullGradient(name));
    const std::vector<float> got(gradient.data_as<float>(), gradient.data_as<float>() + gradient.numel());
    EXPECT_EQ(got, values.get<std::vector<float>>()) << golden["name"] << ": " << name;
  }
  EXPECT_EQ(golden["gradients"].size(), 3u);
  return absl::OkStatus();
}

TEST(MixedDTypesGoldenTest, OutputsAndGradientsAreThoseOfFullyShardInPyTorch) {
  std::ifstream file("fsdp/testdata/mixed_dtypes.json");
  const json golden = json::parse(file);
  ASSERT_EQ(golden["cases"].size(), 2u);
  for (const json& one : golden["cases"]) {
    EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) { return ExpectGolden(one, std::move(group)); }));
  }
}

}  // namespace
}  // namespace fsdp
