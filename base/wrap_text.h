// SPDX-License-Identifier: Apache-2.0
//
// WrapText: help texts for the width of a terminal.
#ifndef FSDP_BASE_WRAP_TEXT_H_
#define FSDP_BASE_WRAP_TEXT_H_

#include <string>
#include <string_view>

namespace fsdp {

// `text` with each line that is longer than `columns` divided at blanks. A part after the first begins with as many
// blanks as the line, and four more if the line begins with "  --", a flag, or "usage: ", or is one more form of that
// usage: it begins with the same program, and no empty line is between them. A word that is longer than a line stays
// whole.
std::string WrapText(std::string_view text, int columns);

// The columns of help texts: $COLUMNS if it is a number of 20 or more; else the width of the terminal that stdout is,
// at most 100; else 80.
int HelpColumns();

}  // namespace fsdp

#endif  // FSDP_BASE_WRAP_TEXT_H_
