// SPDX-License-Identifier: Apache-2.0
//
// Quote: names that come from a file, made fit for a message: control characters escaped, so that a hostile name cannot
// write to a terminal, and long ones cut.
#ifndef FSDP_BASE_QUOTE_H_
#define FSDP_BASE_QUOTE_H_

#include <string>
#include <string_view>

namespace fsdp {

// `text` with control characters, quotes and backslashes escaped, and its middle left out when it is longer than 256
// bytes.
std::string Printable(std::string_view text);

// Printable between double quotes.
std::string Quote(std::string_view name);

}  // namespace fsdp

#endif  // FSDP_BASE_QUOTE_H_
