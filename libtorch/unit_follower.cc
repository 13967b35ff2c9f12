// SPDX-License-Identifier: Apache-2.0
//
// Four hooks around each module's forward and backward tell fsdp/ the progress of execution. Modules of LibTorch have
// no hooks, so it is found as follows:
//
//   forward begins and ends      ShardedModule::Forward
//   a unit begins                an operator gets one of its parameters (UseObserver). Open units that do not
//                                contain it end first, and units around it begin before it: open_ is a path of the tree
//   backward begins              autograd calls a hook of an output, uses a parameter, or accumulates into one
//   a unit begins, in backward   as in forward, or autograd accumulates into one of its parameters
//   a unit ends, in backward     all its parameters that forward used have accumulated
//   backward ends                autograd's final callback
//
// Autograd saves parameters by their storage, so backward reads the values that are gathered at that time
// (slot_storage.h). unit_follower_gradients.cc has the gradients.
//
// In the host's backward a unit that several forwards visited would begin and end once per visit, with a reduction
// each, while autograd accumulates once. Such a unit is entered only for reading (fsdp/'s recomputation), until it
// accumulates.
//
// OnUse cannot throw its errors, since LibTorch swallows exceptions of observers. They become the message of the
// parameter's storage, which the use itself throws.
#include "fsdp/libtorch/unit_follower.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/libtorch/tensor_bridge.h"

namespace fsdp {
namespace {

constexpr char kGone[] = "backward of a graph whose ShardedModule is gone";

void ThrowIfError(const absl::Status& status) { TORCH_CHECK(status.ok(), std::string(status.message())); }

bool InGraphTask() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

UnitFollower::UnitFollower(ShardedModel& model)
    : model_(&model), streams_(model.stream(), TorchDeviceOf(model.units().device())) {}

std::shared_ptr<UnitFollower> UnitFollower::Create(ShardedModel& model, const MirrorModule& mirror) {
  std::shared_ptr<UnitFollower> follower(new UnitFollower(model));
  follower->hooks_ = model.module().hooks();
  TORCH_CHECK(follower->hooks_ != nullptr, "the root of the model is not hooked");
  follower->node_of_unit_.assign(model.units().size(), -1);
  follower->AddNodes(model.module(), "", -1);
  follower->AddCasts(mirror);
  follower->leaves_.emplace(model.units(), mirror.mirrored_parameters(), *follower);
  follower->states_.resize(follower->leaves_->leaves().size());
  follower->HookGradients();
  return follower;
}

void UnitFollower::AddNodes(Module& module, const std::string& name, int enclosing) {
  const int unit = model_->units().IndexOf(module);
  int node = enclosing;
  if (enclosing < 0 || (unit >= 0 && node_of_unit_[unit] < 0)) {
    node = static_cast<int>(nodes_.size());
    nodes_.push_back({.name = name.empty() ? "root" : name, .unit = unit, .parent = enclosing});
    nodes_.back().modules = unit >= 0 ? model_->units().unit(unit).modules : std::vector<Module*>{&module};
    // Several modules may make up one unit: the first one met makes the node, later ones find it.
    if (unit >= 0) node_of_unit_[unit] = node;
  } else if (unit >= 0) {
    node = node_of_unit_[unit];
  }
  for (const auto& [child, below] : module.children()) {
    AddNodes(*below, name.empty() ? child : absl::StrCat(name, ".", child), node);
  }
}

void UnitFollower::HookGradients() {
  for (int i = 0; i < static_cast<int>(states_.size()); ++i) {
    const LeafTensors::Leaf& leaf = leaves_->leaves()[i];
    if (!leaf.requires_grad) continue;
    // Weakly: autograd's graph holds the hooks and may outlive the ShardedModule.
    const auto call = [weak = weak_from_this(), i](auto hook) {
      return [weak, i, hook](const auto&... gradient) {
        const std::shared_ptr<UnitFollower> follower = weak.lock();
        TORCH_CHECK(follower != nullptr, kGone);
        return ((*follower).*hook)(i, gradient...);
      };
    };
    Accumulator& accumulator = states_[i].accumulator;
    accumulator = HookAccumulation(leaf.tensor, call(&UnitFollower::OnAccumulate), call(&UnitFollower::OnAccumulated));
    const Unit& unit = model_->units().unit(leaf.part);
    if (unit.accumulates_in_reduce_dtype() && SizeOf(unit.reduce_dtype) > SizeOf(unit.compute_dtype)) {
      KeepGradientsWide(leaf.tensor, accumulator);
    }
  }
}

void UnitFollower::Close() {
  // LibTorch may still be computing with memory of fsdp/.
  streams_.AfterLibTorch().IgnoreError();
  model_->stream().Synchronize().IgnoreError();
  observer_.reset();
  backward_thread_.reset();
  leaves_.reset();
  local_.reset();
  model_ = nullptr;
}

LocalShards& UnitFollower::local_shards() {
  if (!local_.has_value()) local_.emplace(model_->parameters());
  return *local_;
}

void UnitFollower::WaitForLibTorch() { ThrowIfError(streams_.AfterLibTorch()); }

void UnitFollower::Synchronize() {
  WaitForLibTorch();
  if (local_.has_value()) local_->MarkUpdates();
  leaves_->MarkChanges(model_->units());
}

void UnitFollower::BeginForward() {
  TORCH_CHECK(pass_ != Pass::kForward, "Forward of a ShardedModule within its Forward: call the module itself");
  TORCH_CHECK(pass_ != Pass::kBackward || backward_.expired(), "Forward of a ShardedModule within its backward");
  // A backward that threw leaves its pass open; autograd's task, and so backward_, is gone.
  if (pass_ == Pass::kBackward) Forget();
  ThrowIfError(leaves_->Check());
  Synchronize();
  streams_.Clear();
  if (!observer_.has_value() || !observer_->is_mine()) observer_.emplace();
  const bool on_gpu = !TorchDeviceOf(model_->units().device()).is_cpu();
  if (on_gpu && !(backward_thread_.has_value() && backward_thread_->is_mine())) backward_thread_.emplace();
  training_ = at::GradMode::is_enabled();
  // `used` adds up over all forwards before one backward.
  if (training_ && std::exchange(backward_ended_, false)) {
    for (LeafState& state : states_) state.used = false;
  }
  tape_.emplace(model_->NewTape(training_));
  forward_thread_ = std::this_thread::get_id();
  pass_ = Pass::kForward;
  cast_scope_ = CastOperands();
  try {
    Enter(0, /*for_gradients=*/false);
  } catch (...) {
    AbandonForward();
    throw;
  }
  if (local_.has_value()) local_->FollowGradients();  // the gradients of a failed backward were discarded
}

void UnitFollower::EndForward(const std::vector<at::Tensor>& outputs) {
  while (!open_.empty()) Leave();
  pass_ = Pass::kNone;
  cast_scope_.reset();
  {
    const std::lock_guard<std::mutex> lock(foreign_mutex_);
    const std::string foreign = std::exchange(foreign_, {});
    TORCH_CHECK(foreign.empty(), foreign);
  }
  if (!training_) return;
  // Whichever output backward reaches first begins it. A leaf among the outputs does not run any unit's backward.
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([weak = weak_from_this()](const at::Tensor&) {
      const std::shared_ptr<UnitFollower> follower = weak.lock();
      TORCH_CHECK(follower != nullptr, kGone);
      TORCH_CHECK(!at::GradMode::is_enabled(), "backward with create_graph of a sharded module is not supported");
      follower->BeginBackward();
    });
  }
}

void UnitFollower::AbandonForward() {
  if (pass_ != Pass::kForward) return;
  while (!open_.empty()) {
    try {
      Leave();
    } catch (const std::exception&) {  // there is an error already
    }
  }
  pass_ = Pass::kNone;
  cast_scope_.reset();
  segments_.clear();
  recomputing_several_ = false;
  leaves_->Follow();
  const std::lock_guard<std::mutex> lock(foreign_mutex_);
  foreign_.clear();
}

void UnitFollower::BeginBackward() {
  if (pass_ == Pass::kBackward && !backward_.expired()) return;
  TORCH_CHECK(pass_ != Pass::kForward,
              "backward of a sharded module within its Forward: call it after Forward returned");
  Forget();          // a backward that failed
  training_ = true;  // an evaluation may have run since the forward
  Synchronize();
  for (LeafState& state : states_) state.accumulated = false;
  // Autograd destroys the callback when its task ends, with or without an error; backward_ expires then.
  const std::shared_ptr<void> alive = std::make_shared<char>();
  backward_ = alive;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), alive] {
    if (const std::shared_ptr<UnitFollower> follower = weak.lock()) follower->EndBackward();
  });
  pass_ = Pass::kBackward;
  Enter(0, /*for_gradients=*/true);
}

bool UnitFollower::Syncs(int node) const {
  return model_->executor().sync() && UnitOf(node).controls.requires_gradient_sync;
}

// Reduces units whose gradients an earlier backward kept local and which this one does not reach (an expert without
// work).
void UnitFollower::ReduceOwed() {
  for (int node = 1; node < static_cast<int>(nodes_.size()); ++node) {
    if (nodes_[node].owes && Syncs(node)) Enter(node, /*for_gradients=*/true);
  }
}

void UnitFollower::EndBackward() {
  ReduceOwed();
  // The root is open until here: its parameters may accumulate last.
  while (!open_.empty()) Leave();
  pass_ = Pass::kNone;
  for (Node& node : nodes_) node.visits = 0;
  backward_ended_ = true;
  if (!local_.has_value()) return;
  ThrowIfError(model_->stream().Synchronize());
  // FollowGradients runs operators that must not count as uses.
  at::DisableRecordFunctionGuard quiet;
  local_->FollowGradients();
}

// Clears this class's state of a backward that failed. fsdp/ gives back its open units at the next forward.
void UnitFollower::Forget() {
  if (pass_ == Pass::kBackward) {
    for (Node& node : nodes_) node.owes = false;  // they are discarded
  }
  for (Node& node : nodes_) {
    if (node.casts.has_value()) node.casts->Clear();
  }
  open_.clear();
  segments_.clear();
  recomputing_several_ = false;
  pass_ = Pass::kNone;
}

void UnitFollower::OnUse(int index, bool) {
  const Pass pass = pass_;
  if (pass == Pass::kForward && forward_thread_.load() != std::this_thread::get_id()) {
    const std::lock_guard<std::mutex> lock(foreign_mutex_);
    foreign_ = absl::StrCat("parameter \"", leaves_->leaves()[index].mirror->fqn,
                            "\" was used by another thread than Forward (torch.jit.fork? call "
                            "ForwardOnThisThread): a sharded module computes on one thread");
    return;
  }
  // Outside of passes the storage's own message reports the use.
  if (pass != Pass::kForward && !InGraphTask()) return;
  at::DisableRecordFunctionGuard quiet;
  try {
    Use(index);
  } catch (const std::exception& error) {
    leaves_->Refuse(index, MessageOf(error));
  }
}

void UnitFollower::Use(int index) {
  ThrowIfError(streams_.Join());
  const int node = node_of_unit_[leaves_->leaves()[index].unit];
  // The root is always gathered, so it does not count as a unit of the segment.
  if (!segments_.empty() && node != 0 &&
      std::find(segments_.back().begin(), segments_.back().end(), node) == segments_.back().end()) {
    segments_.back().push_back(node);
  }
  if (pass_ == Pass::kForward) {
    states_[index].used = states_[index].used || training_;
    return Enter(node, /*for_gradients=*/false);
  }
  BeginBackward();
  TORCH_CHECK(nodes_[node].forward_version == UnitOf(node).shard_version(),
              "its values were changed after the forward that this backward is of");
  // A unit of several visits, or inside a part of several units, is only read for now (see above).
  Enter(node, /*for_gradients=*/nodes_[node].visits <= 1 && !recomputing_several_);
}

bool UnitFollower::Contains(int outer, int inner) const {
  while (inner >= 0 && inner != outer) inner = nodes_[inner].parent;
  return inner == outer;
}

void UnitFollower::Enter(int node, bool for_gradients) {
  const auto enough = [&] { return pass_ == Pass::kForward || !for_gradients || open_.back().has_gradients; };
  if (IsTop(node) && enough()) return;
  at::DisableRecordFunctionGuard quiet;
  LeaveUntil(node);
  if (IsTop(node)) {
    if (enough()) return;
    open_.back().has_gradients = true;
    Run(/*pre=*/true, open_.back());
  } else {
    if (pass_ == Pass::kForward) CheckCalled(node);
    // Outer units first: open_ is a path of the tree.
    if (nodes_[node].parent >= 0) Enter(nodes_[node].parent, for_gradients);
    const Open open{node, pass_ == Pass::kBackward && for_gradients};
    Run(/*pre=*/true, open);
    open_.push_back(open);
    if (pass_ == Pass::kForward && training_) {
      ++nodes_[node].visits;
      if (nodes_[node].unit >= 0) nodes_[node].forward_version = UnitOf(node).shard_version();
    }
  }
  ThrowIfError(streams_.LibTorchAfter());
  leaves_->Follow();
}

void UnitFollower::LeaveUntil(int node) {
  while (!open_.empty() && !Contains(open_.back().node, node)) Leave();
}

void UnitFollower::Leave() {
  at::DisableRecordFunctionGuard quiet;
  const Open open = open_.back();
  open_.pop_back();
  // fsdp/ may reuse the unit's memory, so LibTorch's work with it comes first.
  WaitForLibTorch();
  if (nodes_[open.node].casts.has_value()) nodes_[open.node].casts->Clear();
  if (open.has_gradients && nodes_[open.node].unit >= 0) nodes_[open.node].owes = !Syncs(open.node);
  try {
    Run(/*pre=*/false, open);
  } catch (...) {
    leaves_->Follow();
    throw;
  }
  leaves_->Follow();
}

// Runs the hooks of the node's modules. A unit of several modules is entered by the first, and left when all have run.
void UnitFollower::Run(bool pre, const Open& open) {
  const auto run = [&](Module& module, bool before) {
    const absl::Span<Tensor> none;  // tensors of LibTorch are not cast here
    if (pass_ == Pass::kForward || !open.has_gradients) {
      return before ? hooks_->PreForward(module, none, *tape_) : hooks_->PostForward(module, none, *tape_);
    }
    return before ? hooks_->PreBackward(module, none, *tape_) : hooks_->PostBackward(module, none, *tape_);
  };
  const std::vector<Module*>& modules = nodes_[open.node].modules;
  if (pre) return ThrowIfError(run(*modules[0], true));
  ThrowIfError(run(*modules[0], false));
  for (size_t i = 1; i < modules.size(); ++i) {
    ThrowIfError(run(*modules[i], true));
    ThrowIfError(run(*modules[i], false));
  }
}

void UnitFollower::BeginSegment() { segments_.emplace_back(); }

bool UnitFollower::EndSegment() {
  if (segments_.empty()) return false;  // the pass was abandoned within it
  const std::vector<int> nodes = std::move(segments_.back());
  segments_.pop_back();
  return nodes.size() > 1;
}

}  // namespace fsdp
