// SPDX-License-Identifier: Apache-2.0
//
// Quote: makes names that come from a file fit for a message. Control characters are escaped, so that a hostile name
// cannot send commands to a terminal, and long names are cut.
#ifndef FSDP_BASE_QUOTE_H_
#define FSDP_BASE_QUOTE_H_

#include <string>
#include <string_view>

namespace fsdp {

// `text` with control characters, characters that hide or move others, quotes, backslashes and invalid UTF-8 escaped
// (escape_text.h), and without its middle if it is longer than 256 bytes.
std::string Printable(std::string_view text);

// Printable between double quotes.
std::string Quote(std::string_view name);

}  // namespace fsdp

#endif  // FSDP_BASE_QUOTE_H_
