// SPDX-License-Identifier: Apache-2.0
//
// Start here: what a training program includes. See fully_sharded_data_parallel.h.
#ifndef FSDP_FSDP_FSDP_H_
#define FSDP_FSDP_FSDP_H_

#include "fsdp/fsdp/fully_sharded_data_parallel.h"  // IWYU pragma: export
#include "fsdp/fsdp/options/options.h"              // IWYU pragma: export
#include "fsdp/fsdp/options/state_dict_config.h"    // IWYU pragma: export
#include "fsdp/fsdp/options/wrap_policy.h"          // IWYU pragma: export
#include "fsdp/fsdp/units/comm_hook.h"              // IWYU pragma: export

#endif  // FSDP_FSDP_FSDP_H_
