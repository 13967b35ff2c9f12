// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/sharded_module.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/libtorch/recompute.h"
#include "fsdp/libtorch/tensor_bridge.h"
#include "fsdp/libtorch/unit_follower.h"

namespace fsdp {
namespace {

// A unit runs again in backward only if CallUnit can call its forward again.
absl::Status RefuseRecomputation(const std::string& of) {
  return absl::UnimplementedError(
      absl::StrCat("activation_checkpointing (", of,
                   ") of a module of LibTorch: its forward cannot be run again from outside; call ",
                   "ShardedModule::Checkpoint in the program's forward instead"));
}

absl::Status CheckUnits(const UnitFollower& follower, const UnitStore& units) {
  // Node 0 is the root, whose forward is the program's.
  if (follower.border_of(0).recomputes) return RefuseRecomputation("root");
  for (const BareModule& bare : units.bare_modules()) {
    if (bare.settings.activation_checkpointing) return RefuseRecomputation(bare.name);
  }
  return absl::OkStatus();
}

// The modules that CallUnit may be given. kUnimplemented if a module of TorchScript would need it.
absl::StatusOr<std::vector<CallUnitRegistry::Called>> CalledModules(const UnitFollower& follower) {
  std::vector<CallUnitRegistry::Called> called;
  // The root is node 0: ShardedModule::Forward calls it, not CallUnit.
  for (int node = 1; node < follower.num_nodes(); ++node) {
    const UnitBorder& border = follower.border_of(node);
    for (const Module* module : follower.modules_of(node)) {
      const auto& mirror = static_cast<const MirrorModule&>(*module);
      if (mirror.original() != nullptr) {
        called.push_back({mirror.original(), node, border});
      } else if (border.recomputes) {
        return RefuseRecomputation(absl::StrCat("unit ", follower.name_of(node)));
      } else if (border.needs_call()) {
        return absl::UnimplementedError(absl::StrCat("mp_policy.output_dtype (unit ", follower.name_of(node),
                                                     ") of a module of TorchScript, which calls its children itself: "
                                                     "cast in the script, or only the root's outputs"));
      }
    }
  }
  return called;
}

absl::Status CheckDevice(const MirrorModule& mirror, const Device& device) {
  const auto check = [&](std::string_view kind, const std::string& fqn, const at::Tensor& tensor) {
    // Shard does not move parameters: the program's other tensors would stay behind.
    if (tensor.device().str() == device.name()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(std::string(kind), " \"", fqn, "\" is on ", tensor.device().str(),
                                                   ", but the process group on ", device.name(),
                                                   ": move the module there before Shard"));
  };
  for (const MirroredParameter& p : mirror.mirrored_parameters()) {
    FSDP_RETURN_IF_ERROR(check("parameter", p.mirror->fqn, p.tensor));
  }
  for (const MirroredBuffer& b : mirror.mirrored_buffers()) {
    FSDP_RETURN_IF_ERROR(check("buffer", b.mirror->fqn, b.tensor));
  }
  return absl::OkStatus();
}

absl::Status FullyShardBelow(MirrorModule& module, const std::shared_ptr<const DeviceMesh>& mesh,
                             const ModulePredicate& units, const FullyShardOptions& options) {
  for (const auto& [name, child] : module.children()) {
    FSDP_RETURN_IF_ERROR(FullyShardBelow(static_cast<MirrorModule&>(*child), mesh, units, options));
    // Inner units first, as fully_shard requires; containers have no forward and are never units.
    if (!child->has_forward() || !units(*child)) continue;
    FSDP_RETURN_IF_ERROR(FullyShard(static_cast<Module&>(*child), mesh, options).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ShardedModule>> FullyShardTree(const ModuleTree& tree,
                                                              std::shared_ptr<const DeviceMesh> mesh,
                                                              const ModulePredicate& units,
                                                              const FullyShardOptions& options) {
  if (mesh == nullptr) return absl::InvalidArgumentError("FullyShard: the mesh is null");
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<MirrorModule> mirror, MirrorModule::Create(tree));
  if (units) FSDP_RETURN_IF_ERROR(FullyShardBelow(*mirror, mesh, units, options));
  FullyShardOptions of_root = options;
  // Recomputing the root would be a second forward of everything.
  of_root.activation_checkpointing = false;
  FSDP_RETURN_IF_ERROR(FullyShard(static_cast<Module&>(*mirror), mesh, of_root).status());
  return ShardedModule::FromFullyShard(std::move(mirror));
}

absl::StatusOr<std::unique_ptr<ShardedModule>> ShardTree(const ModuleTree& tree, ShardGroups groups,
                                                         FsdpOptions options) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<MirrorModule> mirror, MirrorModule::Create(tree));
  return ShardedModule::Wrap(std::move(mirror), std::move(groups), std::move(options));
}

}  // namespace

TorchSummonGuard::TorchSummonGuard(std::unique_ptr<SummonFullParamsGuard> guard, std::shared_ptr<UnitFollower> follower,
                                   Stream& stream)
    : guard_(std::move(guard)), follower_(std::move(follower)), stream_(&stream) {
  follower_->leaves().Follow();
}

TorchSummonGuard::~TorchSummonGuard() { Close().IgnoreError(); }

absl::Status TorchSummonGuard::Close() {
  if (guard_ == nullptr) return absl::OkStatus();
  // LibTorch has done the edits before the guard reads them, and the guard has written them back before the memory
  // goes.
  absl::Status status = follower_->streams().AfterLibTorch();  // the program's edits are in LibTorch's streams
  status.Update(stream_->Synchronize());
  status.Update(guard_->Close());
  guard_ = nullptr;
  follower_->leaves().Follow();
  return status;
}

ShardedModule::ShardedModule(std::unique_ptr<FullyShardedDataParallel> fsdp) : fsdp_(std::move(fsdp)) {}

ShardedModule::~ShardedModule() {
  // First, so that no CallUnit finds a follower that is closed.
  callers_.reset();
  if (follower_ != nullptr) follower_->Close();
}

absl::StatusOr<std::unique_ptr<ShardedModule>> ShardedModule::Wrap(std::unique_ptr<MirrorModule> mirror,
                                                                   ShardGroups groups, FsdpOptions options) {
  if (mirror == nullptr) return absl::InvalidArgumentError("ShardedModule: the mirror is null");
  FSDP_RETURN_IF_ERROR(groups.Validate());
  mirror->AssignNames();
  FSDP_RETURN_IF_ERROR(CheckDevice(*mirror, *groups.any().device()));
  const MirrorModule& original = *mirror;
  FSDP_ASSIGN_OR_RETURN(auto fsdp, FullyShardedDataParallel::Wrap(std::move(mirror), std::move(groups), options));
  std::unique_ptr<ShardedModule> sharded(new ShardedModule(std::move(fsdp)));
  FSDP_RETURN_IF_ERROR(sharded->Follow(original));
  return sharded;
}

absl::StatusOr<std::unique_ptr<ShardedModule>> ShardedModule::FromFullyShard(std::unique_ptr<MirrorModule> mirror) {
  if (mirror == nullptr) return absl::InvalidArgumentError("ShardedModule: the mirror is null");
  mirror->AssignNames();
  // FullyShard has sharded the mirror already, so its mesh determines the device.
  const FsdpModule* root = FsdpModule::Of(*mirror);
  if (root != nullptr && root->mesh() != nullptr) {
    FSDP_RETURN_IF_ERROR(CheckDevice(*mirror, *root->mesh()->group(0)->device()));
  }
  const MirrorModule& original = *mirror;
  FSDP_ASSIGN_OR_RETURN(auto fsdp, FullyShardedDataParallel::FromFullyShard(std::move(mirror)));
  std::unique_ptr<ShardedModule> sharded(new ShardedModule(std::move(fsdp)));
  FSDP_RETURN_IF_ERROR(sharded->Follow(original));
  return sharded;
}

absl::Status ShardedModule::Follow(const MirrorModule& mirror) {
  try {
    at::NoGradGuard no_grad;
    ShardedModel& model = ShardedModel::Of(*fsdp_);
    // From here on the parameters have no memory of their own: an error leaves the module unusable.
    follower_ = UnitFollower::Create(model, mirror);
    FSDP_RETURN_IF_ERROR(CheckUnits(*follower_, model.units()));
    FSDP_ASSIGN_OR_RETURN(auto called, CalledModules(*follower_));
    callers_ = std::make_unique<CallUnitRegistry>(follower_, std::move(called));
    // The module reads its buffers from the mirror's memory, which has buffer_dtype.
    for (const MirroredBuffer& buffer : mirror.mirrored_buffers()) {
      at::Tensor tensor = buffer.tensor;
      tensor.set_data(TorchViewOf(buffer.mirror->data, tensor.device()));
    }
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("Shard: LibTorch: ", MessageOf(error)));
  }
  return fsdp_->stream().Synchronize();  // buffers may be read immediately
}

at::Tensor ShardedModule::Checkpoint(std::function<at::Tensor(const at::Tensor&)> forward, const at::Tensor& input) {
  return Recompute(follower_,
                   [forward = std::move(forward)](const std::vector<at::Tensor>& inputs) {
                     return std::vector<at::Tensor>{forward(inputs[0])};
                   },
                   {input})[0];
}

std::vector<at::Tensor> ShardedModule::Checkpoint(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> forward,
    const std::vector<at::Tensor>& inputs) {
  return Recompute(follower_, std::move(forward), inputs);
}

const std::vector<at::Tensor>& ShardedModule::LocalParameters() {
  // The optimizer's operators come after the reductions. An error of a stream shows in the next call that returns one.
  follower_->streams().LibTorchAfter().IgnoreError();
  return follower_->local_shards().tensors();
}

FullyShardedDataParallel& ShardedModule::fsdp() const {
  // The caller may use the shards on the stream of fsdp/, so LibTorch's work on them comes first.
  follower_->streams().AfterLibTorch().IgnoreError();
  return *fsdp_;
}

MirrorModule* ShardedModule::mirror(std::string_view fqn) const {
  return static_cast<MirrorModule&>(fsdp_->module()).Find(fqn);
}

FsdpModule* ShardedModule::fsdp_module(std::string_view fqn) const {
  const MirrorModule* module = mirror(fqn);
  return module == nullptr ? nullptr : FsdpModule::Of(*module);
}

absl::StatusOr<std::unique_ptr<TorchSummonGuard>> ShardedModule::SummonFullParams(
    const SummonFullParamsOptions& options) {
  // A forward gathers and frees units itself, so the parameters cannot stay whole meanwhile.
  if (follower_->in_forward()) return absl::FailedPreconditionError("SummonFullParams within a Forward");
  follower_->Synchronize();
  FSDP_ASSIGN_OR_RETURN(auto guard, fsdp_->SummonFullParams(options));
  return std::unique_ptr<TorchSummonGuard>(new TorchSummonGuard(std::move(guard), follower_, fsdp_->stream()));
}

int64_t ShardedModule::bound_bytes() const { return follower_->leaves().bound_bytes(); }

int64_t ShardedModule::TakePeakBoundBytes() { return follower_->leaves().TakePeakBoundBytes(); }

void ShardedModule::BeginForward() { follower_->BeginForward(); }

void ShardedModule::EndForward(const std::vector<at::Tensor>& outputs) { follower_->EndForward(outputs); }

void ShardedModule::AbandonForward() { follower_->AbandonForward(); }

at::Tensor ShardedModule::CastInputTensor(const at::Tensor& input) const {
  const auto type = follower_->border_of(0).InputType(follower_->training());
  return type.has_value() ? CastFloating(input, *type) : input;
}

bool ShardedModule::casts_outputs() const { return follower_->border_of(0).output_type.has_value(); }

at::Tensor ShardedModule::CastOutput(const at::Tensor& output) const {
  return CastFloating(output, *follower_->border_of(0).output_type);
}

absl::StatusOr<std::unique_ptr<ShardedModule>> Shard(torch::nn::Module& module, ShardGroups groups,
                                                     FsdpOptions options) {
  return ShardTree(TreeOf(module), std::move(groups), std::move(options));
}

absl::StatusOr<std::unique_ptr<ShardedModule>> Shard(torch::jit::Module& module, ShardGroups groups,
                                                     FsdpOptions options) {
  return ShardTree(TreeOf(module), std::move(groups), std::move(options));
}

absl::StatusOr<std::unique_ptr<ShardedModule>> FullyShard(torch::nn::Module& module,
                                                          std::shared_ptr<const DeviceMesh> mesh,
                                                          const ModulePredicate& units,
                                                          const FullyShardOptions& options) {
  return FullyShardTree(TreeOf(module), std::move(mesh), units, options);
}

absl::StatusOr<std::unique_ptr<ShardedModule>> FullyShard(torch::jit::Module& module,
                                                          std::shared_ptr<const DeviceMesh> mesh,
                                                          const ModulePredicate& units,
                                                          const FullyShardOptions& options) {
  return FullyShardTree(TreeOf(module), std::move(mesh), units, options);
}

}  // namespace fsdp
