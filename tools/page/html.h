// SPDX-License-Identifier: Apache-2.0
//
// The parts that all pages are built from, as strings of HTML, styled by page_style.h. A page is one file: it loads
// nothing, so it opens without a network and can be sent, and its content security policy forbids everything but its
// own scripts. All functions are pure.
//
//   std::string html = PageHead(path, "", {kTableScript});
//   absl::StrAppend(&html, "<h1>", Name(path), "</h1>", Opening("Loss", "In nats per token."), chart, "</section>\n");
//   return absl::StrCat(html, PageFoot("Made by report.", {kTableScript}));
#ifndef FSDP_TOOLS_PAGE_HTML_H_
#define FSDP_TOOLS_PAGE_HTML_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// `text` in a form that may be placed between tags or in an attribute in double quotes, with control characters and
// characters that hide or move others escaped (base/escape_text.h), and without passwords (base/url_password.h).
std::string EscapeHtml(std::string_view text);

// A name from any source: control characters are replaced (base/quote.h), then markup is escaped. Every name on a page
// passes through here.
std::string Html(std::string_view name);

// A name as an element: it may break after its dots and slashes, and its direction does not move what is around it. A
// name longer than 256 bytes lacks its middle.
std::string Name(std::string_view name);

// With narrow spaces between groups of three digits.
std::string Count(int64_t count);

// Three significant digits; a dash if there is no value.
std::string Short(std::optional<double> value);

// A script of a page, and the base64 form of its SHA-256, by which the policy knows it: text that a name brings into
// the page cannot run. page_testutil.h has the check of the digest.
struct PageScript {
  const char* text = "";
  const char* sha256 = "";
};

// From the doctype to the opening of <main>. `title` is escaped here; `more_style` is a style sheet after page_style.h;
// `scripts` are allowed to run, and PageFoot places them.
std::string PageHead(const std::string& title, const std::string& more_style = "",
                     const std::vector<PageScript>& scripts = {});

// The footer, a line of HTML, the scripts, and the end of the page.
std::string PageFoot(const std::string& footer, const std::vector<PageScript>& scripts = {});

// In the following, texts are HTML, and `css` is classes of the style sheet, separated by blanks.

// A number at the top of the page, and its meaning.
std::string Tile(const std::string& value, const std::string& what, const char* css = "");

// A table of the class "data", which kTableScript lets people search and sort: from the opening of its box to the end
// of its head; "</table></div>" ends it. On a phone each row is a block in which the cells after the first have their
// column's title, by ColumnLabels.
struct TableColumn {
  std::string title;
  bool is_number = false;
  bool is_sorted = true;  // false: of a picture
};
std::string DataTable(const std::string& css, const std::vector<TableColumn>& columns);

// The part of a style sheet that gives the cells of DataTable(css, columns) their titles on a phone.
std::string ColumnLabels(const std::string& css, const std::vector<TableColumn>& columns);

// A cell of a table, aligned as a number. `value` is what tables are sorted by (table_script.h); without one, rows come
// last.
std::string NumberCell(const std::string& text, std::optional<double> value, const char* css = "");

// A square of a colour, and its meaning.
std::string LegendEntry(const char* css, const std::string& text);

// The beginning of a section, which "</section>" ends.
std::string Opening(const std::string& title, const std::string& note, const char* css = "");

}  // namespace fsdp

#endif  // FSDP_TOOLS_PAGE_HTML_H_
