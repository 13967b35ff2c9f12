// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/page/html.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/escape_text.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/url_password.h"
#include "fsdp/tools/page/page_style.h"

namespace fsdp {

// Enough for text and for attributes in double quotes; nothing on a page uses single quotes.
std::string EscapeHtml(std::string_view text) {
  std::string escaped;
  for (const char c : EscapeText(HidePasswords(text), "\n\t\"'\\")) {
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

std::string Name(std::string_view name) {
  std::string html = "<bdi>";
  for (const char c : Html(name)) {
    html += c;
    if (c == '.' || c == '/') html += "<wbr>";
  }
  return html + "</bdi>";
}

std::string Count(int64_t count) {
  std::string digits = absl::StrCat(count);
  // Narrow no-break spaces; the 1 keeps one from following a minus sign.
  for (int at = static_cast<int>(digits.size()) - 3; at > (count < 0 ? 1 : 0); at -= 3) digits.insert(at, "\u202f");
  return digits;
}

std::string Short(std::optional<double> value) { return value ? absl::StrFormat("%.3g", *value) : "–"; }

std::string PageHead(const std::string& title, const std::string& more_style, const std::vector<PageScript>& scripts) {
  std::string policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
  if (!scripts.empty()) policy += "; script-src";
  for (const PageScript& script : scripts) absl::StrAppend(&policy, " 'sha256-", script.sha256, "'");
  return absl::StrCat("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
                      "<meta http-equiv=\"Content-Security-Policy\" content=\"", policy, "\">",
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">", "<title>",
                      Html(title), "</title><style>", kPageStyle, more_style, "</style></head>\n<body><main>\n");
}

std::string PageFoot(const std::string& footer, const std::vector<PageScript>& scripts) {
  std::string html = absl::StrCat("<footer>", footer, "</footer>\n</main>");
  for (const PageScript& script : scripts) absl::StrAppend(&html, "<script>", script.text, "</script>\n");
  return html + "</body></html>\n";
}

std::string Tile(const std::string& value, const std::string& what, const char* css) {
  return absl::StrCat("<div class=\"tile\"><b class=\"", css, "\">", value, "</b><span>", what, "</span></div>");
}

std::string DataTable(const std::string& css, const std::vector<TableColumn>& columns) {
  std::string html = absl::StrCat("<div class=\"scroll\"><table class=\"data ", css, "\"><thead><tr>");
  for (const TableColumn& column : columns) {
    absl::StrAppend(&html, "<th scope=\"col\" class=\"", column.is_number ? "number" : "",
                    column.is_sorted ? "" : " unsorted", "\">", column.title, "</th>");
  }
  return html + "</tr></thead>\n";
}

std::string ColumnLabels(const std::string& css, const std::vector<TableColumn>& columns) {
  std::string style = "@media (max-width: 640px) {";
  for (size_t i = 1; i < columns.size(); ++i) {
    absl::StrAppend(&style, " .", css, " td:nth-child(", i + 1, ")::before { content: \"", columns[i].title, "\"; }");
  }
  return style + " }\n";
}

std::string NumberCell(const std::string& text, std::optional<double> value, const char* css) {
  const bool is_sorted = value && !std::isnan(*value);
  return absl::StrCat("<td class=\"number", *css == '\0' ? "" : " ", css, "\"",
                      is_sorted ? absl::StrFormat(" data-v=\"%.6g\"", *value) : "", ">", text, "</td>");
}

std::string LegendEntry(const char* css, const std::string& text) {
  return absl::StrCat("<span><svg viewBox=\"0 0 10 10\"><rect class=\"", css, "\" width=\"10\" height=\"10\"/></svg>",
                      text, "</span>");
}

std::string Opening(const std::string& title, const std::string& note, const char* css) {
  return absl::StrCat("<section class=\"", css, "\"><h2>", title, "</h2><p>", note, "</p>\n");
}

}  // namespace fsdp
