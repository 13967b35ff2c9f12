// SPDX-License-Identifier: Apache-2.0
//
// WrapPolicy: which submodules of a root become FSDP units of their own. A value; PyTorch's wrap.py has the same three.
//
//   .auto_wrap_policy = ModuleWrapPolicy<Gpt2Block>()
#ifndef FSDP_FSDP_WRAP_POLICY_H_
#define FSDP_FSDP_WRAP_POLICY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/unit_options.h"
#include "nn/module.h"

namespace fsdp {

class WrapPolicy {
 public:
  // A module to wrap, and what its unit has of its own.
  struct Selected {
    std::string name;  // its path under the root
    Module* module = nullptr;
    UnitOverrides overrides = {};
  };

  // Modules to wrap, below `root` and without it, parents before children.
  using Select = std::function<std::vector<Selected>(Module& root)>;

  // No unit but the root.
  WrapPolicy() = default;
  explicit WrapPolicy(Select select) : select_(std::move(select)) {}

  std::vector<Selected> Apply(Module& root) const { return select_ ? select_(root) : std::vector<Selected>(); }

  // False of a default-made policy.
  explicit operator bool() const { return static_cast<bool>(select_); }

 private:
  Select select_;
};

// Wraps each module for which `predicate` holds.
WrapPolicy LambdaWrapPolicy(std::function<bool(Module& module)> predicate);

// Wraps each module that is one of `Classes`, or derived from one.
template <typename... Classes>
WrapPolicy ModuleWrapPolicy() {
  return LambdaWrapPolicy([](Module& module) { return ((dynamic_cast<Classes*>(&module) != nullptr) || ...); });
}

// Wraps, children first, each module whose parameters outside already wrapped children count at least `min_num_params`
// elements. Containers (ModuleList) are never units. A module that shares a parameter with one outside it is not
// wrapped, since a shared parameter has to lie within one unit.
WrapPolicy SizeBasedWrapPolicy(int64_t min_num_params = 100'000'000);

}  // namespace fsdp

#endif  // FSDP_FSDP_WRAP_POLICY_H_
