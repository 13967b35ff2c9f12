// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/page/html.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/escape_text.h"
#include "fsdp/base/quote.h"
#include "fsdp/tools/page/page_style.h"

namespace fsdp {

// Enough for text and for attributes in double quotes; nothing on a page uses single quotes.
std::string EscapeHtml(std::string_view text) {
  std::string escaped;
  for (const char c : EscapeText(text, "\n\t\"'\\")) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string Html(std::string_view name) { return EscapeHtml(Printable(name)); }

std::string Count(int64_t count) {
  std::string digits = absl::StrCat(count);
  // Narrow no-break spaces; the 1 keeps one from following a minus sign.
  for (int at = static_cast<int>(digits.size()) - 3; at > (count < 0 ? 1 : 0); at -= 3) digits.insert(at, "\u202f");
  return digits;
}

std::string Short(std::optional<double> value) { return value ? absl::StrFormat("%.3g", *value) : "–"; }

std::string PageHead(const std::string& title, const char* more_style, const char* more_head) {
  return absl::StrCat("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">", more_head, "<title>",
                      Html(title), "</title><style>", kPageStyle, more_style, "</style></head>\n<body><main>\n");
}

std::string PageFoot(const std::string& footer) {
  return absl::StrCat("<footer>", footer, "</footer>\n</main></body></html>\n");
}

std::string Tile(const std::string& value, const std::string& what, const char* css) {
  return absl::StrCat("<div class=\"tile\"><b class=\"", css, "\">", value, "</b><span>", what, "</span></div>");
}

std::string LegendEntry(const char* css, const std::string& text) {
  return absl::StrCat("<span><svg viewBox=\"0 0 10 10\"><rect class=\"", css, "\" width=\"10\" height=\"10\"/></svg>",
                      text, "</span>");
}

std::string Opening(const std::string& title, const std::string& note, const char* css) {
  return absl::StrCat("<section class=\"", css, "\"><h2>", title, "</h2><p>", note, "</p>\n");
}

}  // namespace fsdp
