// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/module_index.h"

namespace fsdp {

ModuleIndex::ModuleIndex(const UnitStore& units) : units_(units) {
  for (size_t b = 0; b < units.bare_modules().size(); ++b) {
    for (const Module* module : units.bare_modules()[b].modules) bare_[module] = units.size() + static_cast<int>(b);
  }
}

int ModuleIndex::OfCasts(const Module& module) const {
  const int unit = units_.IndexOf(module);
  if (unit >= 0) return unit;
  const auto bare = bare_.find(&module);
  return bare == bare_.end() ? -1 : bare->second;
}

int ModuleIndex::OfSchedule(const Module& module) const {
  const int index = OfCasts(module);
  return index < units_.num_scheduled() ? index : -1;
}

const std::vector<Module*>& ModuleIndex::ModulesOf(int index) const {
  return is_unit(index) ? units_.unit(index).modules : units_.bare_modules()[index - units_.size()].modules;
}

std::string ModuleIndex::NameOf(const Module& module) const {
  const int index = OfCasts(module);
  return is_unit(index) ? "unit " + units_.unit(index).display_name()
                        : "module " + units_.bare_modules()[index - units_.size()].name;
}

}  // namespace fsdp
