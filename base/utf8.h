// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 as table 3-7 of the Unicode Standard defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#ifndef FSDP_BASE_UTF8_H_
#define FSDP_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

// The length in bytes of the first character of `text`, 1 to 4; 0 if `text` is empty or begins with anything else.
size_t Utf8Length(std::string_view text);

bool IsUtf8(std::string_view text);

// Appends the character of a code point below 0x110000 that is not a surrogate.
void AppendUtf8(uint32_t code, std::string& out);

}  // namespace fsdp

#endif  // FSDP_BASE_UTF8_H_
