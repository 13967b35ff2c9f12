// SPDX-License-Identifier: Apache-2.0
//
// For tests: a small GPT-2 whose units are made without a facade, to run the executor with settings that only FSDP2
// has, and to read every rank's part of a model.
#ifndef FSDP_FSDP_UNITS_UNITS_TESTUTIL_H_
#define FSDP_FSDP_UNITS_UNITS_TESTUTIL_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/units/executor.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/module.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/optim/adamw.h"

namespace fsdp {

// The parts of one rank's model.
struct TestUnits {
  std::unique_ptr<Module> module;
  std::shared_ptr<const LayerOps> layer_ops;
  std::unique_ptr<UnitStore> units;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<AdamW> optimizer;
  int rank = 0;  // whose batches it is trained on

  // ComputeGradients runs forward and backward on the batch of `step` and the rank; Train then steps the optimizer and
  // clears the gradients. Both are collective, and block until the device is done.
  absl::Status ComputeGradients(int step);
  absl::Status Train(int step);

  std::vector<ShardedParameter*> parameters() const;
};

// Settings of a unit that is fully sharded by rows, under FSDP2's rules.
UnitSettings Fsdp2Settings();

// Units: the root and each block, all with `settings`. `rank` as in TestUnits.
absl::StatusOr<TestUnits> MakeTestUnits(ShardGroups groups, int rank, const UnitSettings& settings,
                                        const ExecutorOptions& options = {});

// Whole tensors by name, which ranks that are threads join from their slices. Adding is thread-safe; reading is not.
class WholeTensors {
 public:
  void Add(const std::string& name, const Shape& shape, const Interval& interval, const Tensor& slice);
  void AddParameters(const std::vector<ShardedParameter*>& parameters);
  void AddGradients(const std::vector<ShardedParameter*>& parameters);

  bool operator==(const WholeTensors& other) const { return tensors_ == other.tensors_; }
  bool empty() const { return tensors_.empty(); }
  const std::map<std::string, std::vector<float>>& tensors() const { return tensors_; }

 private:
  std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
  std::map<std::string, std::vector<float>> tensors_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNITS_TESTUTIL_H_
