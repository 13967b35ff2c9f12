// SPDX-License-Identifier: Apache-2.0
//
// Modules of several inputs and outputs under both APIs: a decoder that reads the states of an encoder and a mask, and
// gives an auxiliary output in addition to its own. Values are small whole numbers, so that sums are exact and ranks'
// gradients compare by ==.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/linear.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int64_t kWidth = 3;
constexpr int64_t kRows = 2;

// The dtypes of the decoder's inputs in its last forward.
struct Seen {
  std::vector<DType> inputs;
};

// (x, memory, mask) to (x W + memory, memory V): the second output is the auxiliary one. The mask is int32 and goes
// nowhere; a gradient of the auxiliary output may be left out.
class Decoder final : public Module {
 public:
  explicit Decoder(Seen* seen) : seen_(seen) {
    main_ = AddChild("main", std::make_unique<Conv1D>(kWidth, kWidth, Initializer::Constant(2)));
    side_ = AddChild("side", std::make_unique<Conv1D>(kWidth, kWidth, Initializer::Constant(1)));
  }
  std::string_view type_name() const override { return "Decoder"; }

 private:
  absl::StatusOr<TensorList> DoForwardList(const TensorList& inputs, Tape& tape) override {
    if (inputs.size() != 3) return absl::InvalidArgumentError("Decoder takes x, memory and a mask");
    if (seen_ != nullptr) {
      seen_->inputs.clear();
      for (const Tensor& t : inputs) seen_->inputs.push_back(t.defined() ? t.dtype() : DType::kUInt8);
    }
    FSDP_ASSIGN_OR_RETURN(const Tensor y, main_->Forward(inputs[0], tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor sum, tape.Empty(y.dtype(), y.shape()));
    tape.ops().Add(y, inputs[1], sum, tape.stream());
    FSDP_ASSIGN_OR_RETURN(const Tensor side, side_->Forward(inputs[1], tape));
    return TensorList{sum, side};
  }

  absl::StatusOr<TensorList> DoBackwardList(const TensorList& grads, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_side, side_->Backward(grads[1], tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_memory, tape.Empty(grad_side.dtype(), grad_side.shape()));
    tape.ops().Add(grad_side, grads[0], grad_memory, tape.stream());
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_x, main_->Backward(grads[0], tape));
    return TensorList{grad_x, grad_memory, Tensor()};
  }

  Seen* const seen_;
  Conv1D* main_;
  Conv1D* side_;
};

// (source, target, mask) to (decoded, auxiliary): decodes target with the encoding of source.
class Translator final : public Module {
 public:
  explicit Translator(Seen* seen = nullptr) {
    encoder_ = AddChild("encoder", std::make_unique<Conv1D>(kWidth, kWidth, Initializer::Constant(1)));
    decoder_ = AddChild("decoder", std::make_unique<Decoder>(seen));
  }
  std::string_view type_name() const override { return "Translator"; }
  Module* encoder() { return encoder_; }
  Module* decoder() { return decoder_; }

 private:
  absl::StatusOr<TensorList> DoForwardList(const TensorList& inputs, Tape& tape) override {
    if (inputs.size() != 3) return absl::InvalidArgumentError("Translator takes source, target and a mask");
    FSDP_ASSIGN_OR_RETURN(const Tensor memory, encoder_->Forward(inputs[0], tape));
    return decoder_->Forward({inputs[1], memory, inputs[2]}, tape);
  }

  absl::StatusOr<TensorList> DoBackwardList(const TensorList& grads, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(const TensorList decoded, decoder_->Backward(grads, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_source, encoder_->Backward(decoded[1], tape));
    return TensorList{grad_source, decoded[0], Tensor()};
  }

  Conv1D* encoder_;
  Decoder* decoder_;
};

absl::StatusOr<Tensor> Whole(Device& device, int seed) {
  FSDP_ASSIGN_OR_RETURN(const Tensor t, Tensor::Empty(device, DType::kFloat32, {kRows, kWidth}));
  for (int64_t i = 0; i < t.numel(); ++i) t.data_as<float>()[i] = static_cast<float>((i * 3 + seed * 7) % 5 - 2);
  return t;
}

absl::StatusOr<TensorList> Inputs(Device& device, int rank) {
  FSDP_ASSIGN_OR_RETURN(const Tensor source, Whole(device, 10 + rank));
  FSDP_ASSIGN_OR_RETURN(const Tensor target, Whole(device, 20 + rank));
  FSDP_ASSIGN_OR_RETURN(const Tensor mask, Tensor::Empty(device, DType::kInt32, {kRows}));
  std::fill_n(mask.data_as<int32_t>(), kRows, 1);
  return TensorList{source, target, mask};
}

std::vector<float> ValuesOf(const Tensor& t) {
  return std::vector<float>(t.data_as<float>(), t.data_as<float>() + t.numel());
}

const char* const kParameters[] = {"encoder.weight",    "encoder.bias",        "decoder.main.weight",
                                   "decoder.main.bias", "decoder.side.weight", "decoder.side.bias"};

// The mean of the gradients of all ranks' inputs, in one process, and rank 0's gradients of its inputs.
struct Truth {
  std::vector<std::vector<float>> parameters;
  std::vector<float> grad_source, grad_target;
};
absl::StatusOr<Truth> InOneProcess(int ranks) {
  const std::shared_ptr<Device> device = CreateHostDevice();
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const LayerOps> ops, LayerOpsFor(*device));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("test"));
  Translator model;
  model.AssignNames();
  FSDP_RETURN_IF_ERROR(model.Materialize(*device, 0));
  Truth truth;
  for (int rank = 0; rank < ranks; ++rank) {
    Tape tape(*stream, *ops);
    FSDP_ASSIGN_OR_RETURN(const TensorList inputs, Inputs(*device, rank));
    FSDP_RETURN_IF_ERROR(model.Forward(inputs, tape).status());
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, Whole(*device, 30 + rank));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_side, Whole(*device, 40 + rank));
    FSDP_ASSIGN_OR_RETURN(const TensorList grads, model.Backward({grad, grad_side}, tape));
    FSDP_RETURN_IF_ERROR(stream->Synchronize());
    if (rank > 0) continue;
    truth.grad_source = ValuesOf(grads[0]);
    truth.grad_target = ValuesOf(grads[1]);
  }
  for (const auto& [name, parameter] : model.NamedParameters()) {
    std::vector<float> mean = ValuesOf(parameter->grad);
    for (float& value : mean) value /= static_cast<float>(ranks);
    truth.parameters.push_back(mean);
  }
  return truth;
}

using Wrap = std::function<absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>>(std::shared_ptr<ProcessGroup>)>;

// Two ranks, which are a power of two: their mean is exact.
void ExpectTruth(const Wrap& wrap) {
  ASSERT_OK_AND_ASSIGN(const Truth truth, InOneProcess(2));
  EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto model, wrap(group));
    Tape tape = model->NewTape();
    FSDP_ASSIGN_OR_RETURN(const TensorList inputs, Inputs(model->device(), group->rank()));
    FSDP_ASSIGN_OR_RETURN(const TensorList out, model->Forward(inputs, tape));
    EXPECT_EQ(out.size(), 2u);
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, Whole(model->device(), 30 + group->rank()));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_side, Whole(model->device(), 40 + group->rank()));
    FSDP_ASSIGN_OR_RETURN(const TensorList grads, model->Backward({grad, grad_side}, tape));
    FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
    if (group->rank() == 0) {
      EXPECT_EQ(ValuesOf(grads[0]), truth.grad_source);
      EXPECT_EQ(ValuesOf(grads[1]), truth.grad_target);
      EXPECT_FALSE(grads[2].defined());
    }
    for (int p = 0; p < 6; ++p) {
      FSDP_ASSIGN_OR_RETURN(const Tensor whole, model->GetFullGradient(kParameters[p]));
      EXPECT_EQ(ValuesOf(whole), truth.parameters[p]) << kParameters[p];
    }
    return absl::OkStatus();
  }));
}

TEST(SeveralTensorsTest, Fsdp1GivesTheGradientsOfOneProcess) {
  for (const bool recompute : {false, true}) {
    ExpectTruth([&](std::shared_ptr<ProcessGroup> group) {
      FsdpOptions options;
      options.auto_wrap_policy = ModuleWrapPolicy<Conv1D, Decoder>();
      options.activation_checkpointing = recompute;
      return FullyShardedDataParallel::Wrap(std::make_unique<Translator>(), group, options);
    });
  }
}

TEST(SeveralTensorsTest, Fsdp2GivesTheGradientsOfOneProcess) {
  ExpectTruth([](std::shared_ptr<ProcessGroup> group) -> absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> {
    auto model = std::make_unique<Translator>();
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2}, {"shard"}));
    FSDP_RETURN_IF_ERROR(FullyShard(*model->decoder(), mesh).status());
    FSDP_RETURN_IF_ERROR(FullyShard(*model->encoder(), mesh).status());
    FSDP_RETURN_IF_ERROR(FullyShard(*model, mesh).status());
    return FullyShardedDataParallel::FromFullyShard(std::move(model));
  });
}

TEST(SeveralTensorsTest, FloatingPointInputsAreCastAndOthersAreNot) {
  Seen seen;
  EXPECT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions options;
    options.auto_wrap_policy = ModuleWrapPolicy<Decoder>();
    options.mixed_precision.param_dtype = DType::kBFloat16;
    FSDP_ASSIGN_OR_RETURN(const auto model,
                          FullyShardedDataParallel::Wrap(std::make_unique<Translator>(&seen), group, options));
    Tape tape = model->NewTape();
    FSDP_ASSIGN_OR_RETURN(const TensorList inputs, Inputs(model->device(), 0));
    FSDP_ASSIGN_OR_RETURN(const TensorList out, model->Forward(inputs, tape));
    FSDP_ASSIGN_OR_RETURN(const TensorList grads, model->Backward(out, tape));
    EXPECT_EQ(seen.inputs, std::vector<DType>({DType::kBFloat16, DType::kBFloat16, DType::kInt32}));
    EXPECT_EQ(out[0].dtype(), DType::kBFloat16);
    // Gradients have the dtypes that the inputs had before the cast.
    EXPECT_EQ(grads[0].dtype(), DType::kFloat32);
    EXPECT_EQ(grads[1].dtype(), DType::kFloat32);
    EXPECT_FALSE(grads[2].defined());
    return model->stream().Synchronize();
  }));
}

// The mask in each dtype: as it is, or in param_dtype.
TEST(SeveralTensorsTest, InputsOfEveryDTypeThatIsNotFloatingPointStayAsTheyAre) {
  Seen seen;
  EXPECT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions options;
    options.mixed_precision.param_dtype = DType::kBFloat16;
    FSDP_ASSIGN_OR_RETURN(const auto model,
                          FullyShardedDataParallel::Wrap(std::make_unique<Translator>(&seen), group, options));
    std::vector<DType> dtypes = {DType::kFloat64, DType::kFloat32, DType::kFloat16};
    for (const DType dtype : AllDTypes()) {
      if (!IsFloatingPoint(dtype)) dtypes.push_back(dtype);
    }
    for (const DType dtype : dtypes) {
      FSDP_ASSIGN_OR_RETURN(TensorList inputs, Inputs(model->device(), 0));
      FSDP_ASSIGN_OR_RETURN(inputs[2], Tensor::Empty(model->device(), dtype, {kRows}));
      std::memset(inputs[2].data(), 0, inputs[2].nbytes());
      Tape tape = model->NewTape();
      FSDP_RETURN_IF_ERROR(model->Forward(inputs, tape).status());
      FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
      EXPECT_EQ(seen.inputs[2], IsFloatingPoint(dtype) ? DType::kBFloat16 : dtype);
    }
    return absl::OkStatus();
  }));
}

TEST(SeveralTensorsTest, AMaskMayBeLeftOut) {
  Seen seen;
  EXPECT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(std::make_unique<Translator>(&seen), group));
    Tape tape = model->NewTape();
    FSDP_ASSIGN_OR_RETURN(TensorList inputs, Inputs(model->device(), 0));
    inputs[2] = Tensor();
    FSDP_RETURN_IF_ERROR(model->Forward(inputs, tape).status());
    EXPECT_EQ(seen.inputs[2], DType::kUInt8);  // none
    EXPECT_THAT(model->Forward(inputs[0], tape),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("source, target and a mask")));
    return model->stream().Synchronize();
  }));
}

}  // namespace
}  // namespace fsdp
