// SPDX-License-Identifier: Apache-2.0
//
// ModuleIndex: which unit, or module without parameters of its own, a wrapped module is. Schedules count the units
// first and then those bare modules whose recomputation they have; casts count all bare modules.
#ifndef FSDP_FSDP_UNITS_MODULE_INDEX_H_
#define FSDP_FSDP_UNITS_MODULE_INDEX_H_

#include <map>
#include <string>
#include <vector>

#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/module.h"

namespace fsdp {

class ModuleIndex final {
 public:
  // `units` must outlive it.
  explicit ModuleIndex(const UnitStore& units);

  // -1 for a module that was not wrapped.
  int OfCasts(const Module& module) const;
  // -1 for a module that schedules do not have.
  int OfSchedule(const Module& module) const;

  bool is_unit(int index) const { return index >= 0 && index < units_.size(); }

  // The modules that have this index, and how messages call the one that is wrapped: "unit transformer.h.0".
  const std::vector<Module*>& ModulesOf(int index) const;
  std::string NameOf(const Module& module) const;

 private:
  const UnitStore& units_;
  std::map<const Module*, int> bare_;  // of every bare module: its index after the units
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_MODULE_INDEX_H_
