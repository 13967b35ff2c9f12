// SPDX-License-Identifier: Apache-2.0
//
// The first include of a training program: includes everything that fsdp/fsdp.h lists. Programs outside of this
// repository include it as "fsdp/fsdp.h".
#ifndef FSDP_FSDP_H_
#define FSDP_FSDP_H_

#include "fsdp/fsdp/fsdp.h"  // IWYU pragma: export

#endif  // FSDP_FSDP_H_
