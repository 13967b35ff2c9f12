// SPDX-License-Identifier: Apache-2.0
//
// ShellWord: for commands in messages, which people copy into a shell.
#ifndef FSDP_BASE_SHELL_WORD_H_
#define FSDP_BASE_SHELL_WORD_H_

#include <string>
#include <string_view>

namespace fsdp {

// A path as one word of a command: unchanged if no shell changes it; else between apostrophes, or, with characters
// that are not printable, as bash and zsh read $'a\nb'. Unlike Printable it is never cut. One that begins with "-"
// gets "./" before it, so that no program takes it for a flag.
std::string ShellWord(std::string_view path);

}  // namespace fsdp

#endif  // FSDP_BASE_SHELL_WORD_H_
