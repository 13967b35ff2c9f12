// SPDX-License-Identifier: Apache-2.0
//
// What a schedule is told of a model's units: their strategies and settings, and their controls as they are now.
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
