// SPDX-License-Identifier: Apache-2.0
//
// ScheduleTraitsOf: a schedule's input about the units of a model. Strategies and settings are fixed; controls, such as
// a unit's requires_gradient_sync, are read at the time of the call.
#ifndef FSDP_FSDP_UNITS_SCHEDULE_TRAITS_H_
#define FSDP_FSDP_UNITS_SCHEDULE_TRAITS_H_

#include <vector>

#include "fsdp/fsdp/schedule/schedule.h"
#include "fsdp/fsdp/units/unit.h"

namespace fsdp {

// By index in schedules: of every unit, then of every bare module that recomputes. `sync` off: backward keeps every
// gradient local (no_sync).
std::vector<UnitTraits> ScheduleTraitsOf(const UnitStore& units, bool sync);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_SCHEDULE_TRAITS_H_
