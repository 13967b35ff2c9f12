// SPDX-License-Identifier: Apache-2.0
//
// Start here: the first include of a training program, for both of PyTorch's APIs. "fsdp/fsdp.h" is the same.
//
//   FSDP1, which wraps a model
//     fully_sharded_data_parallel.h   FullyShardedDataParallel: training, clipping, state dicts; its guards
//     options/options.h               FsdpOptions
//     options/wrap_policy.h           which submodules become units
//     wrap/manual_wrap.h              the same by hand, with options for each
//     units/comm_hook.h               the program's own gradient reduction
//     optim_forms.h                   PyTorch's three older functions on optimizer state dicts
//   FSDP2, which marks modules in place
//     fully_shard.h                   FullyShard, and FsdpModule, which it adds to a module
//     options/fully_shard_options.h   FullyShardOptions
//   Neither, for layers that are not Modules
//     manual_units.h                  ManualUnits: six calls on plain tensors
//   All of them
//     model_operations.h              the calls between steps: clipping, state dicts, Restore
//     options/state_dict_config.h     the form of state dicts: full, local or sharded
//     options/restore_options.h       the attributes that a restore compares
//     summon_full_params.h            whole parameters for a while
//     grad_clip.h                     clipping without waiting for the norm
//     make_shard_exchange.h           for optimizers that need whole parameters
//     sharded_grad_scaler.h           loss scaling for float16
//     step_graph.h                    a whole step captured in a CUDA graph
#ifndef FSDP_FSDP_FSDP_H_
#define FSDP_FSDP_FSDP_H_

#include "fsdp/fsdp/fully_shard.h"                  // IWYU pragma: export
#include "fsdp/fsdp/fully_sharded_data_parallel.h"  // IWYU pragma: export
#include "fsdp/fsdp/grad_clip.h"                    // IWYU pragma: export
#include "fsdp/fsdp/make_shard_exchange.h"          // IWYU pragma: export
#include "fsdp/fsdp/manual_units.h"                 // IWYU pragma: export
#include "fsdp/fsdp/model_operations.h"             // IWYU pragma: export
#include "fsdp/fsdp/module_state.h"                 // IWYU pragma: export
#include "fsdp/fsdp/optim_forms.h"                  // IWYU pragma: export
#include "fsdp/fsdp/options/fully_shard_options.h"  // IWYU pragma: export
#include "fsdp/fsdp/options/options.h"              // IWYU pragma: export
#include "fsdp/fsdp/options/restore_options.h"      // IWYU pragma: export
#include "fsdp/fsdp/options/state_dict_config.h"    // IWYU pragma: export
#include "fsdp/fsdp/options/wrap_policy.h"          // IWYU pragma: export
#include "fsdp/fsdp/sharded_grad_scaler.h"          // IWYU pragma: export
#include "fsdp/fsdp/step_graph.h"                   // IWYU pragma: export
#include "fsdp/fsdp/summon_full_params.h"           // IWYU pragma: export
#include "fsdp/fsdp/units/comm_hook.h"              // IWYU pragma: export
#include "fsdp/fsdp/wrap/manual_wrap.h"             // IWYU pragma: export

#endif  // FSDP_FSDP_FSDP_H_
