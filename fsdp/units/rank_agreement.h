// SPDX-License-Identifier: Apache-2.0
//
// RankAgreement: the list of facts that must be equal on all ranks of a model. Ranks that differ in one of them would
// match up other collectives, or train parameters that are not each other's shards, without an error.
#ifndef FSDP_FSDP_UNITS_RANK_AGREEMENT_H_
#define FSDP_FSDP_UNITS_RANK_AGREEMENT_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/fsdp/units/shard_groups.h"

namespace fsdp {

class UnitStore;
struct ModelSettings;
struct ParameterInit;

// The value of a fact that is a bool.
inline std::string TrueOrFalse(bool value) { return value ? "true" : "false"; }

class RankAgreement {
 public:
  // The facts of the units of `store`, which were made with `settings` and are to be filled by `init`.
  static RankAgreement Of(const UnitStore& store, const ModelSettings& settings, const ParameterInit& init);

  // `subject` is its name in a message: "backward_prefetch", "offload of unit h.0".
  void Add(std::string_view subject, std::string value);

  // Appends all of `others`.
  void Add(const RankAgreement& others) { facts_.insert(facts_.end(), others.facts_.begin(), others.facts_.end()); }

  // OK if all ranks have the same facts in the same order. Otherwise kFailedPrecondition, on all of them, with the
  // first fact in which some rank differs from rank 0, both values and both ranks. One exchange of the control plane
  // (two if a pair of groups was given). Collective; blocks.
  absl::Status Check(const ShardGroups& groups) const;

 private:
  std::vector<std::pair<std::string, std::string>> facts_;  // subject, value
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_RANK_AGREEMENT_H_
