// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/tensor_parallel/parallel_model_testutil.h"

#include <cmath>
#include <string>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/tensor_parallel/parallel_linear.h"
#include "fsdp/nn/activation.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/norm.h"
#include "fsdp/nn/sequential.h"

namespace fsdp {
namespace {

// Width and heads divide by 2 and by 3, the numbers of ranks that share the layers.
constexpr int64_t kWidth = 6;
constexpr int64_t kHeads = 6;
constexpr int64_t kBatch = 2;
constexpr int64_t kLength = 3;
constexpr int64_t kClasses = 5;

Initializer Weights() { return Initializer::Normal(0, 0.4f); }

absl::StatusOr<std::unique_ptr<Module>> Column(int64_t in, int64_t out, const std::shared_ptr<ProcessGroup>& tp) {
  if (tp == nullptr) return std::make_unique<Linear>(in, out, Weights(), /*bias=*/true);
  return ColumnParallelLinear::Create(in, out, Weights(), tp, /*bias=*/true);
}

absl::StatusOr<std::unique_ptr<Module>> Row(int64_t in, int64_t out, const std::shared_ptr<ProcessGroup>& tp) {
  if (tp == nullptr) return std::make_unique<Linear>(in, out, Weights(), /*bias=*/true);
  return RowParallelLinear::Create(in, out, Weights(), tp, /*bias=*/true);
}

// Every token sees every other; heads of one element, divided over the ranks of `tp`.
class Attention final : public Module {
 public:
  static absl::StatusOr<std::unique_ptr<Attention>> Create(const std::shared_ptr<ProcessGroup>& tp) {
    auto made = std::unique_ptr<Attention>(new Attention());
    // Without a group the layers are plain, for the reference of one process. Each rank computes the heads whose
    // columns its part of the projections has.
    made->heads_ = kHeads / (tp == nullptr ? 1 : tp->size());
    for (Module** projection : {&made->q_, &made->k_, &made->v_}) {
      FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> linear, Column(kWidth, kWidth, tp));
      const std::string name = projection == &made->q_ ? "q_proj" : projection == &made->k_ ? "k_proj" : "v_proj";
      *projection = made->AddChild(name, std::move(linear));
    }
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> out, Row(kWidth, kWidth, tp));
    made->out_ = made->AddChild("o_proj", std::move(out));
    return made;
  }

  std::string_view type_name() const override { return "Attention"; }

 private:
  CrossAttentionShape ShapeOf() const {
    return {.batch = kBatch, .q_len = kLength, .kv_len = kLength, .num_heads = heads_, .head_dim = kWidth / kHeads};
  }

  // Rows of tokens, as the kernel has them.
  static absl::StatusOr<Tensor> Projected(Module& projection, const Tensor& x, Tape& tape) {
    FSDP_ASSIGN_OR_RETURN(const Tensor y, projection.Forward(x, tape));
    return y.View({kBatch * kLength, y.numel() / (kBatch * kLength)});
  }

  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override {
    CrossAttentionOperands operands;
    FSDP_ASSIGN_OR_RETURN(operands.q, Projected(*q_, x, tape));
    FSDP_ASSIGN_OR_RETURN(operands.k, Projected(*k_, x, tape));
    FSDP_ASSIGN_OR_RETURN(operands.v, Projected(*v_, x, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor heads, tape.Empty(x.dtype(), operands.q.shape()));
    FSDP_ASSIGN_OR_RETURN(const Tensor statistics, tape.Empty(DType::kFloat32, {kBatch * heads_ * kLength, 2}));
    tape.ops().CrossAttention(operands, ShapeOf(), heads, statistics, tape.stream());
    // The mask is undefined, and not saved.
    for (const Tensor& saved : {operands.q, operands.k, operands.v, statistics}) tape.Save(saved);
    FSDP_ASSIGN_OR_RETURN(const Tensor out, out_->Forward(heads, tape));
    return out.View({kBatch, kLength, kWidth});
  }

  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    const Tensor grad_rows = grad_output.View({kBatch * kLength, kWidth});
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_heads, out_->Backward(grad_rows, tape));
    CrossAttentionOperands operands;
    FSDP_ASSIGN_OR_RETURN(const Tensor statistics, tape.Restore());
    FSDP_ASSIGN_OR_RETURN(operands.v, tape.Restore());
    FSDP_ASSIGN_OR_RETURN(operands.k, tape.Restore());
    FSDP_ASSIGN_OR_RETURN(operands.q, tape.Restore());
    CrossAttentionGrads grads;
    for (Tensor* grad : {&grads.q, &grads.k, &grads.v}) {
      FSDP_ASSIGN_OR_RETURN(*grad, tape.Empty(grad_heads.dtype(), grad_heads.shape()));
    }
    tape.ops().CrossAttentionBackward(grad_heads, operands, statistics, ShapeOf(), grads, tape.stream());
    // The projections' outputs are this rank's heads only.
    const Shape local{kBatch, kLength, heads_ * kWidth / kHeads};
    FSDP_ASSIGN_OR_RETURN(const Tensor from_v, v_->Backward(grads.v.View(local), tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor from_k, k_->Backward(grads.k.View(local), tape));
    FSDP_ASSIGN_OR_RETURN(Tensor grad_x, q_->Backward(grads.q.View(local), tape));
    for (const Tensor& other : {from_k, from_v}) {
      FSDP_ASSIGN_OR_RETURN(const Tensor sum, tape.Empty(grad_x.dtype(), grad_x.shape()));
      tape.ops().Add(grad_x, other, sum, tape.stream());
      grad_x = sum;
    }
    return grad_x;
  }

  int64_t heads_ = 0;  // of this rank
  Module* q_ = nullptr;
  Module* k_ = nullptr;
  Module* v_ = nullptr;
  Module* out_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Module>> MakeParallelModule(const std::shared_ptr<ProcessGroup>& tp) {
  auto root = std::make_unique<Sequential>();
  root->Append(std::make_unique<LayerNorm>(kWidth, 1e-5));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Attention> attention, Attention::Create(tp));
  root->Append(std::move(attention));
  root->Append(std::make_unique<LayerNorm>(kWidth, 1e-5));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> up, Column(kWidth, 4 * kWidth, tp));
  root->Append(std::move(up));
  root->Append(std::make_unique<Activation>(ActivationKind::kGeluTanh));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> down, Row(4 * kWidth, kWidth, tp));
  root->Append(std::move(down));
  root->Append(std::make_unique<Linear>(kWidth, kClasses, Weights(), /*bias=*/true));
  return root;
}

Tensor TestInput(Device& device, int step, int dp_rank) {
  Tensor x = *Tensor::Empty(device, DType::kFloat32, {kBatch, kLength, kWidth});
  for (int64_t i = 0; i < x.numel(); ++i) {
    // Differs by step and rank, and is the same on every run.
    const int64_t at = (step * 7 + dp_rank) * 41 + i;
    x.data_as<float>()[i] = static_cast<float>(at * at % 23) / 8 - 1.25f;
  }
  return x;
}

Tensor TestTargets(Device& device, int step, int dp_rank) {
  Tensor targets = *Tensor::Empty(device, DType::kInt32, {kBatch * kLength});
  for (int64_t i = 0; i < targets.numel(); ++i) {
    targets.data_as<int32_t>()[i] = static_cast<int32_t>((step + 3 * dp_rank + i * i) % kClasses);
  }
  return targets;
}

absl::StatusOr<float> LossOf(Module& module, int step, int dp_rank, Tape& tape, float scale) {
  CrossEntropyLoss loss;
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, module.Forward(TestInput(tape.device(), step, dp_rank), tape));
  const Tensor rows = logits.View({kBatch * kLength, kClasses});
  FSDP_ASSIGN_OR_RETURN(const Tensor value, loss.Forward(rows, TestTargets(tape.device(), step, dp_rank), tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor grad_logits, loss.Backward(scale, tape));
  FSDP_RETURN_IF_ERROR(module.Backward(grad_logits.View(logits.shape()), tape).status());
  // The host reads the loss.
  FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
  return *value.data_as<float>();
}

absl::StatusOr<ParallelModel> ParallelModel::Make(std::shared_ptr<ProcessGroup> group, const std::vector<int>& sizes,
                                                  TestApi api, bool use_orig_params, const ParallelOptions& parallel) {
  ParallelModel made;
  const bool hybrid = sizes.size() == 3;
  const std::vector<std::string> names =
      hybrid ? std::vector<std::string>{"replicate", "shard", "tp"} : std::vector<std::string>{"dp", "tp"};
  FSDP_ASSIGN_OR_RETURN(made.mesh, DeviceMesh::Create(std::move(group), sizes, names));
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> tp, made.mesh->group("tp"));
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const DeviceMesh> dp,
                        made.mesh->Submesh({names.begin(), names.end() - 1}));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeParallelModule(tp));
  if (api == TestApi::kFsdp2) {
    FullyShardOptions options = {.init_seed = 11};
    options.mp_policy.param_dtype = parallel.param_dtype;
    if (parallel.cpu_offload) options.offload_policy = CpuOffloadPolicy{};
    // Inner modules first: the root's unit has the remaining parameters.
    for (const auto& [name, child] : module->children()) {
      if (child->type_name() == "Attention") FSDP_RETURN_IF_ERROR(FullyShard(*child, dp, options).status());
    }
    FSDP_RETURN_IF_ERROR(FullyShard(*module, dp, options).status());
    FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::FromFullyShard(std::move(module)));
  } else {
    FsdpOptions options = {.init_seed = 11};
    options.use_orig_params = use_orig_params;
    options.mixed_precision.param_dtype = parallel.param_dtype;
    options.cpu_offload.offload_params = parallel.cpu_offload;
    if (hybrid) options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.auto_wrap_policy = ModuleWrapPolicy<Attention>();
    FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::Wrap(std::move(module), dp, options));
  }
  made.optimizer =
      std::make_unique<AdamW>(AdamW::DecayMatricesOnly(made.model->parameters(), {.lr = 1e-2, .weight_decay = 0.1}));
  return made;
}

int ParallelModel::dp_rank() const { return mesh->all()->rank() / mesh->sizes().back(); }

absl::StatusOr<float> ParallelModel::Train(int step, std::optional<float> max_norm) {
  Tape tape = model->NewTape();
  FSDP_ASSIGN_OR_RETURN(const float loss, LossOf(model->module(), step, dp_rank(), tape));
  if (max_norm) FSDP_RETURN_IF_ERROR(model->ClipGradNorm(*max_norm).status());
  FSDP_RETURN_IF_ERROR(optimizer->Step(model->stream()));
  optimizer->ZeroGrad();
  FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
  return loss;
}

absl::StatusOr<StateDict> ParallelModel::State(const StateDictSettings& settings) {
  const StateDictTypeGuard guard(*model, settings);
  FSDP_ASSIGN_OR_RETURN(StateDict state, model->GetStateDict());
  FSDP_RETURN_IF_ERROR(model->AddOptimStateDict(*optimizer, state));
  return state;
}

}  // namespace fsdp
