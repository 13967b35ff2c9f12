// SPDX-License-Identifier: Apache-2.0
//
// Unit: the parameters that are all-gathered and reduced together: a module's parameters that no inner unit has, in one
// buffer of which each rank owns a shard. This file is their memory between steps; unit_runtime.h and
// gradient_reduction.h are their movements during a step.
#ifndef FSDP_FSDP_UNITS_UNIT_H_
#define FSDP_FSDP_UNITS_UNIT_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/options/unit_controls.h"
#include "fsdp/fsdp/schedule/schedule.h"
#include "fsdp/fsdp/units/parameter_init.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/fsdp/units/shard_layout.h"
#include "fsdp/fsdp/units/unit_dtypes.h"
#include "fsdp/fsdp/units/unit_settings.h"
#include "fsdp/fsdp/units/unit_state.h"
#include "fsdp/fsdp/wrap/partition.h"
#include "fsdp/nn/module.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/trace.h"

namespace fsdp {

// A UnitModule (its name, modules, which the program owns, and parameters) with memory. Owned by its UnitStore, at a
// fixed address. Used by one thread of each rank.
struct Unit : UnitModule {
  explicit Unit(UnitModule module) : UnitModule(std::move(module)) {}

  UnitSettings settings;
  UnitControls controls;

  // Parameters of other dtypes than the unit's, sharded or unsharded, are Units of their own: its dtype groups
  // (unit_dtypes.h). They are gathered, bound and resharded with the unit, in its slot (unit_parts.h), and their
  // gradients are reduced after its own. They have no modules and are in no schedule. Owned by the UnitStore.
  // `dtype_group_of`: of such a group, the unit's index.
  std::vector<Unit*> dtype_groups;
  std::optional<int> dtype_group_of;

  // The strategy as it is carried out: kNoShard if the shard group has one rank.
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  UnitGroups groups;

  // The smaller group that parameters are resharded to after forward (UnitSettings::post_forward_group_size); null:
  // none.
  std::shared_ptr<ProcessGroup> post_forward_group;

  // The place of every parameter in the unit's buffer, in the order of `parameters`.
  ShardLayout layout;

  // Likewise of every gradient. Frozen parameters have no elements in it, unless they are in a flat parameter of which
  // more than half is trained: it is reduced whole (unit_gradients.cc).
  ShardLayout grad_layout;

  // By parameter: whether it required or had a gradient when grad_layout was made.
  std::vector<bool> grad_places;

  DType dtype = DType::kFloat32;          // of the shards: the original one
  DType compute_dtype = DType::kFloat32;  // of the unsharded parameters and gradients; `dtype` if no kernel takes that
  DType reduce_dtype = DType::kFloat32;   // of the reduction

  // This rank's part of the parameters, [layout.shard_numel()] in `dtype`; padding is zero.
  Tensor shard;

  // This rank's part of the gradient, own_part(grad_layout), in `dtype`. Each slice counts while its
  // ShardedParameter::has_grad. Undefined if all parameters have been frozen since the unit was made.
  Tensor grad_shard;

  // grad_shard in the compute dtype, or, if the unit is not sharded, in the reduce dtype, under
  // keep_low_precision_grads: the optimizer reads it instead of grad_shard. Undefined if the shards have that dtype.
  Tensor low_precision_grad;

  // `shard` in the compute dtype, under optimizer_casts; each slice's ShardedParameter records whether it is current.
  Tensor compute_shard;

  // Views of shard and gradient for the optimizer, parallel to `parameters`.
  std::vector<std::unique_ptr<ShardedParameter>> sharded_parameters;

  // A SummonFullParamsGuard has the parameters bound: forward and backward are refused until it closes.
  bool summoned = false;

  // Its state within a step. The unit's runtime begins and ends it.
  UnitState state;

  // The unit and its dtype groups.
  std::vector<Unit*> Parts();

  // True if some parameter of one of them requires a gradient.
  bool any_trainable();

  bool sharded() const { return groups.shard != nullptr; }

  // Of its all-gathers, and of its reduce-scatters. Precondition: it is sharded.
  const std::shared_ptr<ProcessGroup>& all_gather_group() const {
    return controls.all_gather_group != nullptr ? controls.all_gather_group : groups.shard;
  }
  const std::shared_ptr<ProcessGroup>& reduce_scatter_group() const {
    return controls.reduce_scatter_group != nullptr ? controls.reduce_scatter_group : groups.shard;
  }

  // True if shard and gradient are in host memory.
  bool offloaded() const { return settings.offload.has_value(); }

  // True if gradients of several backwards without synchronisation are added in the reduce dtype instead of the compute
  // dtype.
  bool accumulates_in_reduce_dtype() const {
    return settings.gradient_rules == GradientRules::kFsdp2 && reduce_dtype != compute_dtype;
  }

  // True if some parameter requires a gradient.
  bool trainable() const;

  // True if grad_layout was made for the parameters that require a gradient or have one now.
  bool GradientsAreLaid() const;

  // Makes grad_layout, grad_shard, low_precision_grad, and the views of them in sharded_parameters, for the parameters
  // that require or have a gradient now. Gradients that exist are kept; others are zero. `host` is the device of
  // offloaded units' memory. kFailedPrecondition if gradients of earlier backwards wait for a reduction. Between
  // passes, with nothing on the streams; blocks.
  absl::Status LayGradients(Device& host, Stream& stream);

  // Memory for `numel` elements of this rank: offloaded units get zeroed host memory, others the group's, which peers
  // reach directly and the caller zeroes.
  absl::StatusOr<Tensor> AllocateShard(int64_t numel, DType dtype, Device& host) const;

  // True if unsharding in `dtype` starts from compute_shard.
  bool has_compute_shard(DType dtype) const { return compute_shard.defined() && compute_shard.dtype() == dtype; }

  // True if the unit computes in `wanted` on its shard or compute_shard itself, so that there is nothing to gather or
  // copy.
  bool computes_on_shard(DType wanted) const {
    return !sharded() && !offloaded() && (wanted == dtype || has_compute_shard(wanted));
  }

  // This rank's part of a buffer of padded_numel elements of `of`, one of the layouts, that collectives work in.
  Interval own_part(const ShardLayout& of) const { return of.ShardInterval(groups.shard_rank()); }

  // Call after changing `shard` other than by an optimizer, and before lending its memory to a caller who may change
  // it: copies that were gathered or cast from it before are not used again. All ranks must call it alike.
  void MarkShardChanged() const;

  // How often the shard was changed: by MarkShardChanged, by optimizers, by replaced data.
  int64_t shard_version() const;
};

// A module that was wrapped and is not a unit, because it has no own parameters: it may cast and recompute.
struct BareModule {
  std::string name;  // "root" or the module's path
  std::vector<Module*> modules;
  UnitSettings settings;
  PassState pass = {};
};

// The units of a model and how its parameters' names map to them.
class UnitStore {
 public:
  // Gives the units of `partition` groups, layouts, and shards in the groups' memory, with values from `init`.
  // kInvalidArgument for parameters of several or of integer dtypes in one unit, of LayoutKind::kDim0 if they require
  // gradients; kFailedPrecondition, naming the first difference, if ranks differ in units, parameters, settings or in
  // `settings.agreement`. The Parameters are undefined afterwards. Collective; blocks.
  static absl::StatusOr<std::unique_ptr<UnitStore>> Create(Partition partition, const ModelSettings& settings,
                                                           ShardGroups groups, const ParameterInit& init);

  // Parents before children, in the order in which modules are named, so the root is first; then the dtype groups.
  // Modules without own parameters are not units, even if they were wrapped; this includes the root.
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  Unit& unit(int index) const { return *units_[index]; }
  int size() const { return static_cast<int>(units_.size()); }

  // Modules that were wrapped and are not units. Those that recompute come first, because schedules have them; a
  // module's index in schedules is size() plus its index in this list.
  const std::vector<BareModule>& bare_modules() const { return bare_; }
  std::vector<BareModule>& bare_modules() { return bare_; }

  // The state of the unit or bare module with this index: units first.
  PassState& pass(int index) { return index < size() ? unit(index).state.pass : bare_[index - size()].pass; }
  const PassState& pass(int index) const {
    return index < size() ? unit(index).state.pass : bare_[index - size()].pass;
  }

  // The number of indices in schedules, and their names.
  int num_scheduled() const { return size() + num_scheduled_bare_; }
  std::vector<std::string> ScheduledNames() const;

  // The order in which a forward visits units if modules run in the order in which they are registered.
  const std::vector<UnitVisit>& registration_order() const { return registration_order_; }

  // The unit whose module this is, or -1.
  int IndexOf(const Module& module) const;

  // The index in schedules of a module, or -1; of one that was wrapped and may be bare, or -1.
  int ScheduledIndexOf(const Module& module) const;
  int WrappedIndexOf(const Module& module) const;

  // For these indices: whether it is a unit's, the modules that have it, and the name of a wrapped module in messages:
  // "unit transformer.h.0".
  bool is_unit(int index) const { return index >= 0 && index < size(); }
  const std::vector<Module*>& ModulesOf(int index) const;
  std::string NameOf(const Module& module) const;

  // The unit of the root module, or -1.
  int root_unit() const { return !units_.empty() && units_[0]->name.empty() ? 0 : -1; }

  // Maps further names of shared parameters to the first name of each.
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

  // Ignored parameters, under each of their names. They belong to no unit; state dicts hold them whole.
  const std::vector<Module::NamedParameter>& unmanaged() const { return unmanaged_; }

  // Messages for people about legal but surprising properties.
  const std::vector<std::string>& warnings() const { return warnings_; }
  void AddWarning(std::string warning) { warnings_.push_back(std::move(warning)); }

  const ShardGroups& groups() const { return groups_; }

  // True if some parameters are parts of larger tensors (Parameter::part).
  bool is_tensor_parallel() const { return groups_.tensor_parallel() != nullptr; }

  // True if each rank's shard is its dim-0 chunk of every tensor, so that state dicts can use it unchanged.
  bool shards_are_dim0_chunks() const;

  // PyTorch's process group of the root: all ranks, or its shard group if the root is hybrid.
  const std::shared_ptr<ProcessGroup>& root_group() const { return root_group_; }

  Device& device() const { return *groups_.any().device(); }

  // The device of offloaded units' optimizer state.
  Device& host() const { return *host_; }

  // From now on the trace gets a span for each unit's work; null: spans are not made.
  void set_trace(std::shared_ptr<Trace> trace) { trace_ = std::move(trace); }
  Trace* trace() const { return trace_.get(); }

 private:
  explicit UnitStore(ShardGroups groups) : groups_(std::move(groups)) {}

  absl::Status Adopt(Partition& partition, const ModelSettings& settings);
  absl::Status AdoptUnit(UnitModule module, const UnitSettings& settings, DTypeGroup group);
  absl::Status AdoptDTypeGroup(int index, DTypeGroup group);
  void AdoptBare(const Partition& partition, const std::vector<UnitSettings>& settings);
  absl::Status SplitPostForwardGroups();
  absl::Status Fill(const Partition& partition, const ParameterInit& init);

  ShardGroups groups_;
  std::shared_ptr<ProcessGroup> root_group_;
  std::shared_ptr<Device> host_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<BareModule> bare_;
  int num_scheduled_bare_ = 0;
  std::vector<UnitVisit> registration_order_;
  std::map<const Module*, int> index_;  // of units, then of bare modules
  std::map<std::string, std::string> aliases_;
  std::vector<Module::NamedParameter> unmanaged_;
  std::vector<std::string> warnings_;
  std::shared_ptr<Trace> trace_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_H_
