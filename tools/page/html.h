// SPDX-License-Identifier: Apache-2.0
//
// The parts that all pages are built from, as strings of HTML, styled by page_style.h. A page is one file: it loads
// nothing, so it opens without a network and can be sent. All functions are pure.
//
//   std::string html = PageHead(path);
//   absl::StrAppend(&html, "<h1>", Html(path), "</h1>", Opening("Loss", "In nats per token."), chart, "</section>\n");
//   return absl::StrCat(html, PageFoot("Made by report."));
#ifndef FSDP_TOOLS_PAGE_HTML_H_
#define FSDP_TOOLS_PAGE_HTML_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

// `text` in a form that may be placed between tags or in an attribute in double quotes, with control characters and
// characters that hide or move others escaped (base/escape_text.h).
std::string EscapeHtml(std::string_view text);

// A name from any source: control characters are replaced (base/quote.h), then markup is escaped. Every name on a page
// passes through here.
std::string Html(std::string_view name);

// With narrow spaces between groups of three digits.
std::string Count(int64_t count);

// Three significant digits; a dash if there is no value.
std::string Short(std::optional<double> value);

// From the doctype to the opening of <main>. `title` is escaped here; `more_style` is a style sheet after page_style.h;
// `more_head` is HTML.
std::string PageHead(const std::string& title, const char* more_style = "", const char* more_head = "");

// The footer, a line of HTML, and the end of the page.
std::string PageFoot(const std::string& footer);

// In the following, texts are HTML, and `css` is classes of the style sheet, separated by blanks.

// A number at the top of the page, and its meaning.
std::string Tile(const std::string& value, const std::string& what, const char* css = "");

// A square of a colour, and its meaning.
std::string LegendEntry(const char* css, const std::string& text);

// The beginning of a section, which "</section>" ends.
std::string Opening(const std::string& title, const std::string& note, const char* css = "");

}  // namespace fsdp

#endif  // FSDP_TOOLS_PAGE_HTML_H_
