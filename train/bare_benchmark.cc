// SPDX-License-Identifier: Apache-2.0
//
// bare_benchmark measures the cost of FSDP itself: the training step of a bare model, and of FullyShardedDataParallel
// with one rank around the same model, in turns within one process, so that a busy machine slows both alike. In the
// same turns it times one large matrix product, the limit of the processor's arithmetic. Takes the flags of train_gpt
// that describe model, batch and dtypes, and prints {"bare": [seconds of each step], "fsdp": [...], "product": [seconds
// of each], "product_flops": of each}; tools/fsdp_benchmark.py makes a table of it.
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/train/sharded_language_model.h"
#include "fsdp/train/train_options.h"

ABSL_FLAG(int, kernel_threads, 1, "threads that compute, 1 or more; train_gpt gives a rank cores / nproc");

namespace fsdp {
namespace {

constexpr int kWarmup = 3;

struct Batch {
  Tensor tokens, targets;
};

// Any tokens will do: the time of a step does not depend on them.
absl::StatusOr<Batch> MakeBatch(Device& device, const TrainOptions& options, int64_t vocab_size) {
  const Shape shape = {options.batch_size, options.seq_len};
  FSDP_ASSIGN_OR_RETURN(const Tensor tokens, Tensor::Empty(device, DType::kInt32, shape));
  for (int64_t i = 0; i < tokens.numel(); ++i) tokens.data_as<int32_t>()[i] = static_cast<int32_t>(i * i % vocab_size);
  return Batch{tokens, tokens.View({tokens.numel()})};
}

// The step of FSDP's mixed precision, without FSDP: parameters are float32, compute runs on copies in param_dtype, and
// gradients are cast back before the optimizer.
class BareTraining {
 public:
  static absl::StatusOr<std::unique_ptr<BareTraining>> Create(Device& device, const CausalLmConfig& config,
                                                              const TrainOptions& options) {
    std::unique_ptr<BareTraining> bare(new BareTraining(device));
    CausalLmConfig with_attention = config;
    SetAttention(options.AttentionOn(device.type()), with_attention);
    FSDP_ASSIGN_OR_RETURN(bare->model_, MakeCausalLm(with_attention));
    FSDP_RETURN_IF_ERROR(bare->model_->Materialize(device, options.fsdp.init_seed));
    FSDP_ASSIGN_OR_RETURN(bare->ops_, LayerOpsFor(device));
    FSDP_ASSIGN_OR_RETURN(bare->stream_, device.CreateStream("compute"));
    FSDP_ASSIGN_OR_RETURN(bare->parameters_, UnshardedParameters(*bare->model_, device));
    std::vector<ShardedParameter*> pointers;
    for (const auto& parameter : bare->parameters_) pointers.push_back(parameter.get());
    bare->optimizer_ = std::make_unique<AdamW>(AdamW::DecayMatricesOnly(pointers, options.adamw));
    const DType param_dtype = options.fsdp.mixed_precision.param_dtype.value_or(DType::kFloat32);
    if (param_dtype != DType::kFloat32) FSDP_RETURN_IF_ERROR(bare->BindCopies(param_dtype));
    return bare;
  }

  absl::Status Step(const Batch& batch) {
    const TensorOps& ops = device_.ops();
    for (const Copy& copy : copies_) ops.CastDivide(copy.master->data, copy.data, 1, *stream_);
    for (const Copy& copy : copies_) ops.Zero(copy.grad, *stream_);
    if (copies_.empty()) {
      for (const auto& parameter : parameters_) ops.Zero(parameter->grad, *stream_);
    }
    Tape tape(*stream_, *ops_);
    const CrossEntropyLoss criterion;
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, model_->Forward(batch.tokens, tape));
    FSDP_RETURN_IF_ERROR(criterion.Forward(logits, batch.targets, tape).status());
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, criterion.Backward(1, tape));
    FSDP_RETURN_IF_ERROR(model_->Backward(grad, tape).status());
    for (const Copy& copy : copies_) ops.CastDivide(copy.grad, copy.master->grad, 1, *stream_);
    FSDP_RETURN_IF_ERROR(optimizer_->Step(*stream_));
    return stream_->Synchronize();
  }

 private:
  // A parameter in the compute dtype.
  struct Copy {
    ShardedParameter* master;
    Tensor data, grad;  // flat
  };

  explicit BareTraining(Device& device) : device_(device) {}

  // Points every parameter of the model at a copy in `dtype`. A shared parameter, which NamedParameters() lists under
  // each name, is bound once, under the name that it has as fqn.
  absl::Status BindCopies(DType dtype) {
    size_t next = 0;
    for (const auto& [name, parameter] : model_->NamedParameters()) {
      if (parameter->fqn != name) continue;
      FSDP_ASSIGN_OR_RETURN(parameter->data, Tensor::Empty(device_, dtype, parameter->shape));
      FSDP_ASSIGN_OR_RETURN(parameter->grad, Tensor::Empty(device_, dtype, parameter->shape));
      const Shape flat = {parameter->shape.numel()};
      copies_.push_back({parameters_[next++].get(), parameter->data.View(flat), parameter->grad.View(flat)});
    }
    return absl::OkStatus();
  }

  Device& device_;
  std::unique_ptr<Module> model_;
  std::shared_ptr<const LayerOps> ops_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<ShardedParameter>> parameters_;
  std::vector<Copy> copies_;
  std::unique_ptr<AdamW> optimizer_;
};

absl::Status ShardedStep(FullyShardedDataParallel& model, AdamW& optimizer, const Batch& batch) {
  Tape tape = model.NewTape();
  const CrossEntropyLoss criterion;
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.Forward(batch.tokens, tape));
  FSDP_RETURN_IF_ERROR(criterion.Forward(logits, batch.targets, tape).status());
  FSDP_ASSIGN_OR_RETURN(const Tensor grad, criterion.Backward(1, tape));
  FSDP_RETURN_IF_ERROR(model.Backward(grad, tape).status());
  FSDP_RETURN_IF_ERROR(optimizer.Step(model.stream()));
  optimizer.ZeroGrad();
  return model.stream().Synchronize();
}

absl::StatusOr<double> Seconds(const std::function<absl::Status()>& step) {
  const absl::Time began = absl::Now();
  FSDP_RETURN_IF_ERROR(step());
  return absl::ToDoubleSeconds(absl::Now() - began);
}

// A product of square matrices in the compute dtype, large enough that memory does not matter.
class Product {
 public:
  static constexpr int64_t kSize = 1024;
  static constexpr int64_t kFlops = 2 * kSize * kSize * kSize;

  static absl::StatusOr<std::unique_ptr<Product>> Create(Device& device, DType dtype) {
    std::unique_ptr<Product> product(new Product);
    FSDP_ASSIGN_OR_RETURN(product->ops_, LayerOpsFor(device));
    FSDP_ASSIGN_OR_RETURN(product->stream_, device.CreateStream("product"));
    FSDP_ASSIGN_OR_RETURN(const Tensor values, Tensor::Empty(device, DType::kFloat32, {kSize, kSize}));
    for (int64_t i = 0; i < values.numel(); ++i) values.data_as<float>()[i] = static_cast<float>(i % 17 - 8);
    for (Tensor* matrix : {&product->a_, &product->b_, &product->c_}) {
      FSDP_ASSIGN_OR_RETURN(*matrix, Tensor::Empty(device, dtype, {kSize, kSize}));
      device.ops().CastDivide(values, *matrix, 1, *product->stream_);
    }
    FSDP_RETURN_IF_ERROR(product->stream_->Synchronize());
    return product;
  }

  absl::Status Run() {
    ops_->Matmul(a_, b_, /*bias=*/Tensor(), c_, /*options=*/{}, *stream_);
    return stream_->Synchronize();
  }

 private:
  Product() = default;

  std::shared_ptr<const LayerOps> ops_;
  std::unique_ptr<Stream> stream_;
  Tensor a_, b_, c_;
};

// One step of each in turn, so that both see the same load of the machine. The first steps warm up caches and
// allocators.
absl::Status Compare(const TrainOptions& options) {
  const std::shared_ptr<Device> device = CreateHostDevice({.kernel_threads = absl::GetFlag(FLAGS_kernel_threads)});
  FSDP_ASSIGN_OR_RETURN(const CausalLmConfig config, ReadModelConfig(options, nullptr));
  FSDP_ASSIGN_OR_RETURN(const Batch batch, MakeBatch(*device, options, VocabSize(config)));
  FSDP_ASSIGN_OR_RETURN(const auto bare, BareTraining::Create(*device, config, options));
  const std::shared_ptr<ProcessGroup> group = std::move(CreateLocalGroups({device}).front());
  FSDP_ASSIGN_OR_RETURN(const auto model, MakeShardedModel(config, options, group, /*trace=*/nullptr));
  AdamW optimizer(AdamW::DecayMatricesOnly(model->parameters(), options.adamw));
  const DType param_dtype = options.fsdp.mixed_precision.param_dtype.value_or(DType::kFloat32);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Product> product, Product::Create(*device, param_dtype));
  std::vector<double> bare_seconds, sharded_seconds, product_seconds;
  for (int64_t step = 0; step < kWarmup + options.learning_rate.steps; ++step) {
    FSDP_ASSIGN_OR_RETURN(const double without, Seconds([&] { return bare->Step(batch); }));
    FSDP_ASSIGN_OR_RETURN(const double with, Seconds([&] { return ShardedStep(*model, optimizer, batch); }));
    FSDP_ASSIGN_OR_RETURN(const double multiplied, Seconds([&] { return product->Run(); }));
    if (step < kWarmup) continue;
    bare_seconds.push_back(without);
    sharded_seconds.push_back(with);
    product_seconds.push_back(multiplied);
  }
  absl::PrintF("{\"bare\": [%s], \"fsdp\": [%s], \"product\": [%s], \"product_flops\": %d}\n",
               absl::StrJoin(bare_seconds, ", "), absl::StrJoin(sharded_seconds, ", "),
               absl::StrJoin(product_seconds, ", "), Product::kFlops);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (const std::optional<int> status = ParseFlags(argc, argv, "bare_benchmark [flags]")) return *status;
  const absl::StatusOr<TrainOptions> options = TrainOptionsFromFlags();
  if (!options.ok()) return ReportUsageError("bare_benchmark", options.status());
  if (const int threads = absl::GetFlag(FLAGS_kernel_threads); threads < 1) {
    return ReportUsageError("bare_benchmark", absl::InvalidArgumentError(
                                                  absl::StrCat("--kernel_threads=", threads, ": expected 1 or more")));
  }
  if (options->dtype != DType::kFloat32) {
    return ReportUsageError("bare_benchmark", absl::InvalidArgumentError("--dtype: expected float32"));
  }
  const absl::Status status = Compare(*options);
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "bare_benchmark: %s\n", std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
