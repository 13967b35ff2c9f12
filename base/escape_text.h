// SPDX-License-Identifier: Apache-2.0
//
// EscapeText: text from anywhere in a form that no terminal, browser or log obeys and in which no character hides or
// moves another. Printable and Quote (quote.h), for names in messages, and Print (terminal.h), for all output of
// programs, are made of it.
#ifndef FSDP_BASE_ESCAPE_TEXT_H_
#define FSDP_BASE_ESCAPE_TEXT_H_

#include <string>
#include <string_view>

namespace fsdp {

// `text` with these parts escaped, so that the result is printable UTF-8:
//
//   - quotes, backslashes and control characters of ASCII, as C writes them, except those in `kept`;
//   - invalid UTF-8, each byte in octal: a terminal with another encoding may obey such bytes;
//   - control characters from U+007F on, line separators, and characters that have no width or change the direction of
//     others (U+202E, U+200B, ...), as JSON writes them: \u202e.
std::string EscapeText(std::string_view text, std::string_view kept = "");

}  // namespace fsdp

#endif  // FSDP_BASE_ESCAPE_TEXT_H_
