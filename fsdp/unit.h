// SPDX-License-Identifier: Apache-2.0
//
// Unit: what is all-gathered and reduced as one: the parameters of a module that no inner unit has, as one flat
// parameter of which each rank owns a shard. This file is their memory between steps; unit_runtime.h moves it during
// one.
#ifndef FSDP_FSDP_UNIT_H_
#define FSDP_FSDP_UNIT_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/process_group.h"
#include "fsdp/flat_layout.h"
#include "fsdp/options.h"
#include "fsdp/schedule.h"
#include "nn/module.h"
#include "optim/sharded_parameter.h"

namespace fsdp {

struct Unit {
  std::string name;  // the module's path; "" for the root
  Module* module = nullptr;
  FlatLayout layout;
  std::vector<std::shared_ptr<Parameter>> parameters;  // those of layout.parameters(), in that order

  DType dtype = DType::kFloat32;          // of the shards: the original one
  DType compute_dtype = DType::kFloat32;  // of the unsharded parameters and gradients
  DType reduce_dtype = DType::kFloat32;   // of the reduction

  Tensor shard;       // [layout.shard_numel()], padding zero
  Tensor grad_shard;  // likewise; each slice counts while its ShardedParameter::has_grad
  std::vector<std::unique_ptr<ShardedParameter>> sharded_parameters;  // views of the two, parallel to `parameters`

  // "root" or the module's path, as schedules name it.
  std::string display_name() const { return name.empty() ? "root" : name; }
};

// The units of a model and how its parameters' names map to them.
class UnitStore {
 public:
  // Cuts `root` into units, gives them shards in `group`'s memory and fills these: see FullyShardedDataParallel::Wrap.
  // Collective: ranks whose units differ get an error. Blocks.
  static absl::StatusOr<std::unique_ptr<UnitStore>> Create(Module& root, ProcessGroup& group,
                                                           const FsdpOptions& options);

  // Parents first, as modules are named, so the root is first. Modules to wrap that have no parameters of their own are
  // left out, the root too.
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  Unit& unit(int index) const { return *units_[index]; }
  int size() const { return static_cast<int>(units_.size()); }

  // The order in which a forward pass visits units if modules run as they are registered.
  const std::vector<UnitVisit>& registration_order() const { return registration_order_; }

  // The unit whose module this is, or -1.
  int IndexOf(const Module& module) const;

  // The unit of the root module, or -1.
  int root_unit() const { return !units_.empty() && units_[0]->name.empty() ? 0 : -1; }

  // Further names of shared parameters, to their first.
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

  // kNoShard if ranks hold whole flat parameters; what options asked for, but for a group of one.
  ShardingStrategy strategy() const { return strategy_; }

  // Ranks that a flat parameter is cut into: 1 under kNoShard, else the group's size.
  int shard_world_size(const ProcessGroup& group) const;
  int shard_rank(const ProcessGroup& group) const;

 private:
  UnitStore() = default;

  absl::Status Partition(Module& root, const FsdpOptions& options);
  absl::Status Descend(Module& module, const std::string& path, int enclosing,
                       const std::map<const Module*, std::string>& wrapped);
  absl::Status AdoptParameters(Module& module, const std::string& path, int unit);
  absl::Status Lay(const ProcessGroup& group, const FsdpOptions& options, Unit& unit);
  absl::Status Allocate(ProcessGroup& group, const FsdpOptions& options, Stream& stream, Unit& unit);

  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<UnitVisit> registration_order_;
  std::map<const Module*, int> index_;
  std::map<const Parameter*, int> unit_of_;
  std::map<std::string, std::string> aliases_;
  ShardingStrategy strategy_ = ShardingStrategy::kFullShard;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNIT_H_
