// SPDX-License-Identifier: Apache-2.0
//
// LoRA: adapters of a frozen Llama, trained on ranks that are threads, saved without the base, and merged into it.
//
//   ./bazelw run //examples:lora -- --directory=/tmp/lora
//
// The base has random weights; the adapters teach it the successor of each token, (7 token + 3) mod 64. Each decoder
// layer is a unit of FullyShard with frozen and trained parameters, which reduces, and has memory for gradients of, the
// trained ones. docs/wrapping.md has the commands that make files for PEFT of the result.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/models/llama.h"
#include "fsdp/models/llama_config.h"
#include "fsdp/models/llama_decoder_layer.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/linear.h"
#include "fsdp/optim/adamw.h"

ABSL_FLAG(int, ranks, 4, "threads that share the work: a divisor of 16");
ABSL_FLAG(int, steps, 200, "steps to train");
ABSL_FLAG(std::string, directory, "", "where to save the adapters and the merged model (default: nothing is saved)");

namespace fsdp {
namespace {

constexpr int64_t kTokens = 64, kSequences = 16, kLength = 8;  // sequences per step, on all ranks together
constexpr int64_t kRank = 8;
constexpr float kAlpha = 16;

LlamaConfig Config() {
  LlamaConfig config;
  config.vocab_size = kTokens;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.initializer_range = 0.2;  // large, as if it had been trained
  return config;
}

bool IsAdapter(const std::string& name) { return absl::StrContains(name, ".lora_"); }

// Gives each projection of attention and MLP an adapter; only adapters are trained.
void AddAdapters(Module& model) {
  for (const auto& [name, module] : model.NamedModules()) {
    auto* const linear = dynamic_cast<Linear*>(module);
    if (linear != nullptr && absl::EndsWith(name, "_proj")) linear->AddLora(kRank, kAlpha);
  }
  model.AssignNames();
  for (const auto& [name, parameter] : model.NamedParameters()) parameter->requires_grad = IsAdapter(name);
}

struct ShardedLlama {
  std::unique_ptr<Module> module;
  FsdpModule* root = nullptr;

  static absl::StatusOr<ShardedLlama> Make(const std::shared_ptr<const DeviceMesh>& mesh, bool adapted) {
    ShardedLlama made;
    FSDP_ASSIGN_OR_RETURN(made.module, MakeLlama(Config()));
    if (adapted) AddAdapters(*made.module);
    for (const auto& [name, module] : made.module->NamedModules()) {
      if (dynamic_cast<LlamaDecoderLayer*>(module) == nullptr) continue;
      FSDP_RETURN_IF_ERROR(FullyShard(*module, mesh).status());
    }
    FSDP_ASSIGN_OR_RETURN(made.root, FullyShard(*made.module, mesh));
    return made;
  }
};

struct Batch {
  Tensor tokens, targets;  // int32 [sequences, kLength] and [sequences * kLength]

  // This rank's sequences of a step, the same however many ranks there are.
  static absl::StatusOr<Batch> OfStep(int step, ProcessGroup& group) {
    const int64_t sequences = kSequences / group.size();
    Batch batch;
    FSDP_ASSIGN_OR_RETURN(batch.tokens, Tensor::Empty(*group.device(), DType::kInt32, {sequences, kLength}));
    FSDP_ASSIGN_OR_RETURN(batch.targets, Tensor::Empty(*group.device(), DType::kInt32, {sequences * kLength}));
    for (int64_t s = 0; s < sequences; ++s) {
      int64_t token = (step * 5 + (group.rank() * sequences + s) * 11) % kTokens;
      for (int64_t i = 0; i < kLength; ++i) {
        batch.tokens.data_as<int32_t>()[s * kLength + i] = static_cast<int32_t>(token);
        token = (7 * token + 3) % kTokens;
        batch.targets.data_as<int32_t>()[s * kLength + i] = static_cast<int32_t>(token);
      }
    }
    return batch;
  }
};

// Forward, backward and update. Returns the loss of this rank's sequences.
absl::StatusOr<float> TrainStep(ShardedLlama& model, Optimizer& optimizer, const Batch& batch) {
  FSDP_ASSIGN_OR_RETURN(Tape tape, model.root->NewTape());
  CrossEntropyLoss cross_entropy;
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.module->Forward(batch.tokens, tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor loss, cross_entropy.Forward(logits, batch.targets, tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor grad, cross_entropy.Backward(1.0f, tape));
  FSDP_RETURN_IF_ERROR(model.module->Backward(grad, tape).status());
  FSDP_RETURN_IF_ERROR(model.root->ClipGradNorm(1.0f).status());
  FSDP_RETURN_IF_ERROR(optimizer.Step(tape.stream()));
  optimizer.ZeroGrad();
  FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
  return *loss.data_as<float>();
}

absl::StatusOr<std::vector<float>> Logits(ShardedLlama& model, const Batch& batch) {
  FSDP_ASSIGN_OR_RETURN(Tape tape, model.root->NewTape(/*training=*/false));
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.module->Forward(batch.tokens, tape));
  FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
  return std::vector<float>(logits.data_as<float>(), logits.data_as<float>() + logits.numel());
}

// weight += alpha / rank * B A. All are whole, and the copies of a FULL state dict.
void AddProduct(const ShardedTensor& b, const ShardedTensor& a, const ShardedTensor& weight) {
  const int64_t out = b.shape.dim(0), in = a.shape.dim(1);
  const float* const a_data = a.shards[0].data.data_as<float>();
  const float* const b_data = b.shards[0].data.data_as<float>();
  float* const w_data = weight.shards[0].data.data_as<float>();
  for (int64_t i = 0; i < out; ++i) {
    for (int64_t r = 0; r < kRank; ++r) {
      const float factor = kAlpha / kRank * b_data[i * kRank + r];
      for (int64_t j = 0; j < in; ++j) w_data[i * in + j] += factor * a_data[r * in + j];
    }
  }
}

// The state of a plain Llama that computes what the adapted one does.
absl::StatusOr<StateDict> Merged(const StateDict& adapted) {
  StateDict merged;
  for (const auto& [key, value] : adapted.entries()) {
    if (!IsAdapter(key.fqn)) merged.Set(key, value);
  }
  const std::string b = "lora_B.weight";
  for (const auto& [key, value] : adapted.entries()) {
    if (!absl::EndsWith(key.fqn, b)) continue;
    const std::string layer = key.fqn.substr(0, key.fqn.size() - b.size());
    const ShardedTensor* const a = adapted.FindTensor(StateKey::Model(layer + "lora_A.weight"));
    const ShardedTensor* const weight = merged.FindTensor(StateKey::Model(layer + "weight"));
    if (a == nullptr || weight == nullptr) {
      return absl::InternalError(absl::StrCat("\"", key.fqn, "\": the state has no weight for it"));
    }
    AddProduct(std::get<ShardedTensor>(value), *a, *weight);
  }
  return merged;
}

// What PEFT reads in addition to adapter_model.safetensors.
absl::Status WriteAdapterConfig(const std::string& path) {
  std::ofstream file(path);
  file << "{\"peft_type\": \"LORA\", \"task_type\": \"CAUSAL_LM\", \"r\": " << kRank << ", \"lora_alpha\": " << kAlpha
       << ",\n \"target_modules\": [\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\", \"gate_proj\", \"up_proj\", "
          "\"down_proj\"]}\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::Status Save(const StateDict& adapters, const StateDict& merged, int steps, ProcessGroup& group) {
  const std::string directory = absl::GetFlag(FLAGS_directory);
  if (directory.empty()) return absl::OkStatus();
  const SaveOptions options{.overwrite = true};
  FSDP_RETURN_IF_ERROR(SaveCheckpoint(adapters, directory + "/adapters", steps, group, options).status());
  FSDP_RETURN_IF_ERROR(SaveCheckpoint(merged, directory + "/merged", steps, group, options).status());
  return group.rank() == 0 ? WriteAdapterConfig(directory + "/adapter_config.json") : absl::OkStatus();
}

// Loads `merged` into a plain Llama and compares its logits with `wanted`.
absl::Status CompareMerged(const StateDict& merged, const Batch& batch, const std::vector<float>& wanted,
                           const std::shared_ptr<const DeviceMesh>& mesh) {
  FSDP_ASSIGN_OR_RETURN(ShardedLlama plain, ShardedLlama::Make(mesh, /*adapted=*/false));
  FSDP_RETURN_IF_ERROR(plain.root->LoadStateDict(merged).status());
  FSDP_ASSIGN_OR_RETURN(const std::vector<float> logits, Logits(plain, batch));
  float largest = 0, difference = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max(largest, std::abs(wanted[i]));
    difference = std::max(difference, std::abs(logits[i] - wanted[i]));
  }
  if (mesh->all()->rank() == 0) {
    std::printf("merged: logits up to %.3g differ by at most %.1g from those of base and adapters\n", largest,
                difference);
  }
  if (difference <= 1e-4f * largest) return absl::OkStatus();
  return absl::InternalError("the merged model is not the adapted one: expected logits that differ by rounding");
}

absl::Status Train(std::shared_ptr<ProcessGroup> group) {
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  FSDP_ASSIGN_OR_RETURN(ShardedLlama model, ShardedLlama::Make(mesh, /*adapted=*/true));
  FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, model.root->parameters());
  std::vector<ShardedParameter*> trained;
  int64_t elements = 0, of_all = 0;
  for (ShardedParameter* parameter : parameters) {
    of_all += parameter->shape.numel();
    if (!parameter->requires_grad) continue;
    elements += parameter->shape.numel();
    trained.push_back(parameter);
  }
  const bool prints = group->rank() == 0;
  if (prints) std::printf("%d of %d elements are trained\n", static_cast<int>(elements), static_cast<int>(of_all));
  AdamW optimizer(trained, {.lr = 1e-2});
  const int steps = absl::GetFlag(FLAGS_steps);
  for (int step = 0; step < steps; ++step) {
    FSDP_ASSIGN_OR_RETURN(const Batch batch, Batch::OfStep(step, *group));
    FSDP_ASSIGN_OR_RETURN(const float loss, TrainStep(model, optimizer, batch));
    if (prints && (step % 50 == 0 || step + 1 == steps)) std::printf("step %3d  loss %.4f\n", step, loss);
  }
  FSDP_ASSIGN_OR_RETURN(const Batch batch, Batch::OfStep(steps, *group));
  FSDP_ASSIGN_OR_RETURN(const std::vector<float> logits, Logits(model, batch));
  FSDP_ASSIGN_OR_RETURN(const StateDict adapters, model.root->GetStateDict({.ignore_frozen_params = true}));
  FSDP_ASSIGN_OR_RETURN(const StateDict whole, model.root->GetFullStateDict());
  FSDP_ASSIGN_OR_RETURN(const StateDict merged, Merged(whole));
  FSDP_RETURN_IF_ERROR(Save(adapters, merged, steps, *group));
  return CompareMerged(merged, batch, logits, mesh);
}

absl::Status CheckFlags() {
  const int ranks = absl::GetFlag(FLAGS_ranks);
  if (ranks < 1 || kSequences % ranks != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--ranks=", ranks, ": expected a divisor of ", kSequences));
  }
  if (absl::GetFlag(FLAGS_steps) < 1) return absl::InvalidArgumentError("--steps: expected at least 1");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (const std::optional<int> exit = ParseFlags(argc, argv, "lora [flags]")) return *exit;
  absl::Status status = CheckFlags();
  const int wrong = status.ok() ? kExitFailed : kExitUsage;
  if (status.ok()) status = RunRanks(absl::GetFlag(FLAGS_ranks), Train);
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "lora: %s\n", std::string(status.message()).c_str());
  return wrong;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
