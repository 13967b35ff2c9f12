// SPDX-License-Identifier: Apache-2.0
//
// The globals outside the allow-lists (torch_globals.h). Programs save objects of any class next to the weights: the
// arguments of a command line, paths, generators, configurations. Such an object is inert: a name and a place, never
// a value, and it must not make the weights unreadable (state/torch_objects.h). Nothing here is imported or called.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_INERT_GLOBALS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_INERT_GLOBALS_H_

#include <string_view>

#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"

namespace fsdp {

// False for globals whose calls run programs, import, open files or look up attributes, so that an attack is refused
// as one. True for all others, of which some could do harm in Python too: nothing is executed here.
bool IsInertGlobal(std::string_view name);

// True for an inert global that makes a tensor in a form that is not read (sparse, quantized, a subclass), or a part of
// one: its object may be a weight.
bool IsTensorGlobal(std::string_view name);

// Advice for the owner of a file that names `name`, a global of neither allow-list: what it represents, and how to save
// that in a supported form. Empty for an unknown global.
std::string_view AdviceOnGlobal(std::string_view name);

// How torch files are parsed: their globals are allowed, other objects are inert.
PickleOptions TorchPickleOptions();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_INERT_GLOBALS_H_
