// SPDX-License-Identifier: Apache-2.0
//
// The first line of a training program: all that fsdp/fsdp.h, which lists it, includes. Programs outside of this
// repository include it as "fsdp/fsdp.h".
#ifndef FSDP_FSDP_H_
#define FSDP_FSDP_H_

#include "fsdp/fsdp/fsdp.h"  // IWYU pragma: export

#endif  // FSDP_FSDP_H_
