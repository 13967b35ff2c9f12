// SPDX-License-Identifier: Apache-2.0
//
// UnitFollower: reports the progress of forward and backward of a module of LibTorch to fsdp/, as hooks of fsdp/'s own
// modules would. unit_follower.cc has the rules.
#ifndef FSDP_LIBTORCH_UNIT_FOLLOWER_H_
#define FSDP_LIBTORCH_UNIT_FOLLOWER_H_

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/libtorch/accumulate_hooks.h"
#include "fsdp/libtorch/backward_thread.h"
#include "fsdp/libtorch/leaf_tensors.h"
#include "fsdp/libtorch/local_shards.h"
#include "fsdp/libtorch/mirror_module.h"
#include "fsdp/libtorch/operand_casts.h"
#include "fsdp/libtorch/slot_storage.h"
#include "fsdp/libtorch/stream_order.h"
#include "fsdp/libtorch/unit_border.h"
#include "fsdp/libtorch/use_observer.h"

namespace fsdp {

// Held by a ShardedModule, and weakly by the graphs of autograd. Functions throw c10::Error. One thread.
class UnitFollower final : public SlotOwner, public std::enable_shared_from_this<UnitFollower> {
 public:
  // `model`, the model of the mirror, must outlive its Close.
  static std::shared_ptr<UnitFollower> Create(ShardedModel& model, const MirrorModule& mirror);

  // Releases the module and `model`. A graph that lives on gets errors for its parameters.
  void Close();

  void BeginForward();
  void EndForward(const std::vector<at::Tensor>& outputs);
  // Call after an error: gives the units back. The caller throws the error.
  void AbandonForward();

  // The first call in a backward begins it; later calls do nothing. Call it on a thread of autograd.
  void BeginBackward();

  // An operator is about to use leaf `index`.
  void OnUse(int index, bool in_place) override;
  OperandCasts* casts(int index) override;

  // A call of a unit's forward by CallUnit (unit_call.h) begins, has returned, and is over. A unit that needs such a
  // call is refused without it.
  void BeginCall(int node);
  void LeaveCalled(int node);
  void EndCall(int node);

  // Operators of this thread get cast operands while the result lives; null if no unit casts.
  std::unique_ptr<OperandCastScope> CastOperands() const;

  // Records the units that forward uses from now on, for a part that will run again in backward. EndSegment returns
  // whether there are several.
  void BeginSegment();
  bool EndSegment();

  // While `several`, units that backward uses are gathered without memory for gradients, since their forward runs again
  // and others will follow. Returns the value set before.
  bool SetRecomputing(bool several) { return std::exchange(recomputing_several_, several); }

  // The modules of each unit, the root's first, and the casts at their borders. By node.
  const std::vector<Module*>& modules_of(int node) const { return nodes_[node].modules; }
  const std::string& name_of(int node) const { return nodes_[node].name; }
  const UnitBorder& border_of(int node) const { return nodes_[node].border; }
  int num_nodes() const { return static_cast<int>(nodes_.size()); }

  // True if the last forward keeps state for a backward.
  bool training() const { return training_; }

  // True within a Forward or a backward.
  bool in_pass() const { return pass_ != Pass::kNone; }
  bool in_forward() const { return pass_ == Pass::kForward; }

  LeafTensors& leaves() { return *leaves_; }
  LocalShards& local_shards();

  // Reports changes by optimizers of torch::optim to fsdp/, and changes of the parameters to autograd. Between passes.
  void Synchronize();

  // The order of fsdp/'s stream and LibTorch's streams.
  TorchStreams& streams() { return streams_; }

 private:
  enum class Pass : uint8_t { kNone, kForward, kBackward };

  // A unit, or the root if the root is not a unit.
  struct Node {
    std::string name;
    std::vector<Module*> modules = {};
    int unit = -1;  // in the UnitStore; -1: none
    int parent = -1;
    int visits = 0;               // by forwards since the last backward
    int64_t forward_version = 0;  // Unit::shard_version() at the last such forward
    bool owes = false;            // has gradients that were not reduced (no_sync)
    int calls = 0;                // that have begun and are not over
    UnitBorder border = {};
    std::optional<OperandCasts> casts = {};
  };
  // The state of a leaf in the present passes.
  struct LeafState {
    bool used = false;         // by a forward since the last backward
    bool accumulated = false;  // in this backward
    Accumulator accumulator = {};
  };
  struct Open {
    int node = -1;
    bool has_gradients = false;  // backward: entered for its gradients, not only to be read
  };

  explicit UnitFollower(ShardedModel& model);
  void AddNodes(Module& module, const std::string& name, int enclosing);
  void AddCasts(const MirrorModule& mirror);
  void HookGradients();

  void Use(int index);
  void Enter(int node, bool for_gradients);
  void LeaveUntil(int node);
  void Leave();
  void CheckCalled(int node) const;
  void Run(bool pre, const Open& open);
  bool Contains(int outer, int inner) const;
  bool IsTop(int node) const { return !open_.empty() && open_.back().node == node; }
  // True: the gradient is in its slot, and autograd has nothing to add.
  bool OnAccumulate(int index, const at::Tensor& gradient);
  void OnAccumulated(int index);
  bool Syncs(int node) const;
  void ReduceOwed();
  void EndBackward();
  void Forget();
  void WaitForLibTorch();
  const Unit& UnitOf(int node) const { return model_->units().unit(nodes_[node].unit); }

  ShardedModel* model_;  // null once closed
  TorchStreams streams_;
  ModuleHooks* hooks_ = nullptr;  // model_'s
  std::optional<LeafTensors> leaves_;
  std::vector<LeafState> states_;  // by leaf
  std::vector<Node> nodes_;        // the root first
  std::vector<int> node_of_unit_;
  std::optional<LocalShards> local_;
  std::optional<UseObserver> observer_;
  std::optional<BackwardOnCaller> backward_thread_;  // on a GPU
  std::unique_ptr<OperandCastScope> cast_scope_;     // of a Forward

  std::atomic<Pass> pass_{Pass::kNone};
  std::atomic<std::thread::id> forward_thread_{};
  std::optional<Tape> tape_;
  std::vector<Open> open_;                  // from the root to the one that computes
  bool training_ = false;                   // the last forward keeps state for a backward
  bool backward_ended_ = true;              // since the last forward that keeps
  std::weak_ptr<void> backward_;            // lives as long as autograd's task of the backward
  std::vector<std::vector<int>> segments_;  // nodes of each, the inner ones last
  bool recomputing_several_ = false;

  std::mutex foreign_mutex_;
  std::string foreign_;  // an error of a use by another thread; guarded by foreign_mutex_
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_UNIT_FOLLOWER_H_
