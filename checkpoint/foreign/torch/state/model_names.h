// SPDX-License-Identifier: Apache-2.0
//
// ModelNames: the names of a model's parameters without what wrappers put into them: DistributedDataParallel and
// DataParallel a "module." before all of them, torch.compile "_orig_mod.", FSDP1 "_fsdp_wrapped_module.", activation
// checkpointing "_checkpoint_wrapped_module.". Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_MODEL_NAMES_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_MODEL_NAMES_H_

#include <cstdint>
#include <set>
#include <string>

namespace fsdp {

class ModelNames {
 public:
  // All names of the model have to be seen before the first is changed: a module may be named "module".
  void See(const std::string& name);

  // `name` without the wrappers' parts.
  std::string Unwrapped(const std::string& name) const;

  // `left out of 6 names, where wrappers put it: "module."`; empty if Unwrapped changes none of those that were seen.
  std::string note() const;

 private:
  bool are_all_modules() const { return seen_ > 0 && modules_ == seen_; }

  int64_t seen_ = 0;
  int64_t modules_ = 0;  // names that begin with "module."
  int64_t wrapped_ = 0;  // names with one of the other parts
  std::set<std::string> parts_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_MODEL_NAMES_H_
