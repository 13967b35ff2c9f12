// SPDX-License-Identifier: Apache-2.0
//
// IsNaturallyBefore: the order in which people look for names, numbers by their value ("h.2" before "h.10"). Pure.
#ifndef FSDP_BASE_NATURAL_ORDER_H_
#define FSDP_BASE_NATURAL_ORDER_H_

#include <string_view>

namespace fsdp {

// True if `a` comes before `b`, runs of digits compared as numbers of any length. A strict weak order.
bool IsNaturallyBefore(std::string_view a, std::string_view b);

}  // namespace fsdp

#endif  // FSDP_BASE_NATURAL_ORDER_H_
