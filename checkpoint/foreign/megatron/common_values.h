// SPDX-License-Identifier: Apache-2.0
//
// CommonValues: what a Megatron-Core checkpoint says besides its sharded tensors: the dict in common.pt, or the dict
// around the model in a rank's file. Objects of Python classes (args is an argparse.Namespace) are not read; they are
// named. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_COMMON_VALUES_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_COMMON_VALUES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

// The extra value that has the dict "optimizer" of common.pt.
inline constexpr char kOptimizerCommon[] = "optimizer.common";

// An entry of common.pt that only this project writes: param_groups with the names of the parameters of each group,
// which Megatron-Core does not record.
inline constexpr char kNamedGroups[] = "param_groups";

struct CommonValues {
  std::optional<int64_t> iteration;
  std::optional<int64_t> global_step;  // NeMo's, which has no iteration
  std::optional<double> checkpoint_version;

  // Plain values by name, as texts, for extra values: "checkpoint_version", "args", "optimizer.param_groups", ...
  std::vector<std::pair<std::string, std::string>> texts;

  // Values that are neither plain nor a tensor that is read, for TensorSource::left_out().
  std::vector<std::string> left_out;

  // Of the optimizer: its groups, all of them if there are several optimizers; how its state was divided ("" if that is
  // not recorded); the steps that it made (nullopt if none are recorded, or groups differ).
  PythonJson param_groups = PythonJson::array();
  PythonJson named_groups = PythonJson::array();  // kNamedGroups
  std::string sharding_type;
  std::optional<double> optimizer_step;
};

// Of `root`, a dict, whose members `skipped` are read elsewhere. kInvalidArgument if it is not a dict.
absl::StatusOr<CommonValues> ReadCommonValues(TorchNode root, const std::vector<std::string>& skipped = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_COMMON_VALUES_H_
