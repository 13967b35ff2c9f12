// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/wrap_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace fsdp {
namespace {

constexpr int kFewest = 20;

std::string WrapLine(absl::string_view line, size_t columns, bool hangs) {
  const size_t blanks = std::min(line.find_first_not_of(' '), line.size());
  const std::string indent(blanks + (hangs ? 4 : 0), ' ');
  std::string wrapped(line.substr(0, blanks));
  size_t used = blanks;
  bool is_first = true;
  for (const absl::string_view word : absl::StrSplit(line.substr(blanks), ' ')) {
    if (!is_first && used + 1 + word.size() > columns) {
      wrapped.append("\n").append(indent);
      used = indent.size();
    } else if (!is_first) {
      wrapped.append(" ");
      ++used;
    }
    wrapped.append(word.data(), word.size());
    used += word.size();
    is_first = false;
  }
  return wrapped;
}

}  // namespace

std::string WrapText(std::string_view text, int columns) {
  std::vector<std::string> lines = absl::StrSplit(absl::string_view(text.data(), text.size()), '\n');
  std::string program;  // with a blank, between the usage and the line that ends it
  for (std::string& line : lines) {
    absl::string_view form = line;
    const bool is_usage = absl::ConsumePrefix(&form, "usage: ");
    if (is_usage) program = std::string(form.substr(0, form.find(' '))) + " ";
    if (line.empty()) program.clear();
    const bool is_form = is_usage || (!program.empty() && absl::StartsWith(line, program));
    line = WrapLine(line, static_cast<size_t>(std::max(columns, kFewest)), is_form || absl::StartsWith(line, "  --"));
  }
  return absl::StrJoin(lines, "\n");
}

int HelpColumns() {
  int columns = 0;
  const char* wanted = std::getenv("COLUMNS");
  if (wanted != nullptr && absl::SimpleAtoi(wanted, &columns) && columns >= kFewest) return columns;
  winsize size = {};
  const bool is_terminal = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= kFewest;
  return is_terminal ? std::min<int>(size.ws_col, 100) : 80;
}

}  // namespace fsdp
