// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/s3_reply.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/utf8.h"

namespace fsdp {
namespace {

// A page has 1000 objects of about ten elements each.
constexpr int kMaxElements = 65536;
constexpr int kMaxDepth = 16;

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the reply of the store ", what));
}

struct Element {
  std::string name;  // without a namespace prefix
  std::string text;  // of the element itself, entities replaced
  std::vector<Element> children;

  // The text of the first child of that name, or empty.
  std::string Text(absl::string_view child) const {
    const auto found =
        std::find_if(children.begin(), children.end(), [&](const Element& element) { return element.name == child; });
    return found == children.end() ? "" : found->text;
  }
};

// One pass over the text, which it consumes from the front.
class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<Element> Document() {
    if (static_cast<int64_t>(text_.size()) > kMaxReplyBytes) return Broken("is longer than 4 MiB");
    // A byte order mark, which XML allows.
    absl::ConsumePrefix(&text_, "\xef\xbb\xbf");
    text_ = absl::StripLeadingAsciiWhitespace(text_);
    if (absl::ConsumePrefix(&text_, "<?xml ")) {
      const size_t end = text_.find("?>");
      if (end == absl::string_view::npos) return Broken("ends in its XML declaration");
      text_ = absl::StripLeadingAsciiWhitespace(text_.substr(end + 2));
    }
    FSDP_ASSIGN_OR_RETURN(Element root, ReadElement(0));
    if (!absl::StripAsciiWhitespace(text_).empty()) return Broken("continues after its root element");
    return root;
  }

 private:
  absl::StatusOr<Element> ReadElement(int depth) {
    // Recursion follows the text's nesting, so both bounds protect the stack and the memory.
    if (depth > kMaxDepth) return Broken("nests elements too deeply");
    if (++elements_ > kMaxElements) return Broken("has too many elements");
    if (!absl::ConsumePrefix(&text_, "<")) return Broken("is not XML");
    Element element;
    FSDP_ASSIGN_OR_RETURN(const bool is_empty, ReadStartTag(element));
    while (!is_empty) {
      // Each byte is consumed once: time is linear in the length of the reply.
      const size_t end = text_.find('<');
      if (end == absl::string_view::npos) return Broken(absl::StrCat("ends in element ", Quote(element.name)));
      FSDP_RETURN_IF_ERROR(AppendText(text_.substr(0, end), element.text));
      text_.remove_prefix(end);
      if (absl::ConsumePrefix(&text_, "</")) {
        FSDP_RETURN_IF_ERROR(ReadEndTag(element));
        break;
      }
      FSDP_ASSIGN_OR_RETURN(Element child, ReadElement(depth + 1));
      element.children.push_back(std::move(child));
    }
    return element;
  }

  // True for a tag without contents: "<Name/>". Attributes, here only namespaces, are skipped.
  absl::StatusOr<bool> ReadStartTag(Element& element) {
    const size_t end = text_.find('>');
    if (end == absl::string_view::npos) return Broken("ends in a tag");
    absl::string_view tag = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    const bool is_empty = absl::ConsumeSuffix(&tag, "/");
    FSDP_ASSIGN_OR_RETURN(element.name, Name(tag.substr(0, tag.find_first_of(" \t\r\n"))));
    return is_empty;
  }

  absl::Status ReadEndTag(const Element& element) {
    const size_t end = text_.find('>');
    if (end == absl::string_view::npos) return Broken("ends in a tag");
    FSDP_ASSIGN_OR_RETURN(const std::string name, Name(absl::StripTrailingAsciiWhitespace(text_.substr(0, end))));
    text_.remove_prefix(end + 1);
    if (name == element.name) return absl::OkStatus();
    return Broken(absl::StrCat("ends element ", Quote(element.name), " with ", Quote(name)));
  }

  // Declarations, comments and CDATA begin with characters that are not allowed in names, so they are refused here.
  static absl::StatusOr<std::string> Name(absl::string_view text) {
    const size_t colon = text.find(':');
    if (colon != absl::string_view::npos) text.remove_prefix(colon + 1);
    const bool is_name = !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
      return absl::ascii_isalnum(c) || c == '_' || c == '-';
    });
    if (!is_name) return Broken(absl::StrCat("has a tag ", Quote(std::string(text)), ", expected a plain element"));
    return std::string(text);
  }

  static absl::Status AppendText(absl::string_view text, std::string& out) {
    while (true) {
      const size_t entity = text.find('&');
      out.append(text.data(), std::min(entity, text.size()));
      if (entity == absl::string_view::npos) return absl::OkStatus();
      const size_t end = text.find(';', entity);
      // The longest, "&#x10FFFF;", has 10 characters. The bound also keeps the search from being quadratic.
      if (end == absl::string_view::npos || end - entity > 12) return Broken("has an entity that does not end");
      FSDP_RETURN_IF_ERROR(AppendEntity(text.substr(entity + 1, end - entity - 1), out));
      text.remove_prefix(end + 1);
    }
  }

  static absl::Status AppendEntity(absl::string_view entity, std::string& out) {
    static constexpr std::pair<absl::string_view, char> kNamed[] = {
        {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    for (const auto& [name, character] : kNamed) {
      if (entity == name) {
        out.push_back(character);
        return absl::OkStatus();
      }
    }
    absl::string_view digits = entity;
    uint32_t code = 0;
    const bool is_number = absl::ConsumePrefix(&digits, "#x")
                               ? absl::SimpleHexAtoi(digits, &code)
                               : absl::ConsumePrefix(&digits, "#") && absl::SimpleAtoi(digits, &code);
    // No NUL, which would cut a key short, and no surrogates, which are not UTF-8.
    if (!is_number || code == 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      return Broken(absl::StrCat("has the entity ", Quote(std::string(entity)), ", which XML does not define"));
    }
    AppendUtf8(code, out);
    return absl::OkStatus();
  }

  absl::string_view text_;
  int elements_ = 0;
};

absl::StatusOr<Element> ParseDocument(absl::string_view xml, absl::string_view root) {
  FSDP_ASSIGN_OR_RETURN(Element element, Parser(xml).Document());
  if (element.name == root) return element;
  return Broken(absl::StrCat("is ", Quote(element.name), ", expected ", root));
}

absl::StatusOr<std::string> ReadKey(const Element& element, absl::string_view child, absl::string_view prefix) {
  std::string key = element.Text(child);
  // A key of another prefix could make Sweep or AbortUploads delete objects that were not asked for.
  if (!key.empty() && key.size() <= 1024 && absl::StartsWith(key, prefix)) return key;
  return Broken(
      absl::StrCat("lists the key ", Quote(key), ", expected keys that begin with ", Quote(std::string(prefix))));
}

// Checks a value that becomes part of a later URL.
absl::Status CheckToken(const std::string& token, absl::string_view what) {
  const auto is_graph = [](char c) { return absl::ascii_isgraph(c); };
  if (token.size() <= 2048 && std::all_of(token.begin(), token.end(), is_graph)) return absl::OkStatus();
  return Broken(absl::StrCat("has a ", what, " of more than 2048 or of other than printable characters"));
}

}  // namespace

absl::StatusOr<ListPage> ParseListPage(absl::string_view xml, absl::string_view prefix) {
  FSDP_ASSIGN_OR_RETURN(const Element root, ParseDocument(xml, "ListBucketResult"));
  ListPage page;
  for (const Element& child : root.children) {
    if (child.name == "Contents") {
      ObjectEntry entry;
      FSDP_ASSIGN_OR_RETURN(entry.key, ReadKey(child, "Key", prefix));
      if (!absl::SimpleAtoi(child.Text("Size"), &entry.nbytes) || entry.nbytes < 0) {
        return Broken(absl::StrCat("gives ", Quote(entry.key), " no size in bytes"));
      }
      page.listing.objects.push_back(std::move(entry));
    } else if (child.name == "CommonPrefixes") {
      FSDP_ASSIGN_OR_RETURN(std::string folder, ReadKey(child, "Prefix", prefix));
      page.listing.folders.push_back(std::move(folder));
    }
  }
  if (root.Text("IsTruncated") != "true") return page;
  // Without a token the caller would take a truncated list for a complete one.
  page.next_token = root.Text("NextContinuationToken");
  if (page.next_token.empty()) return Broken("is truncated and has no NextContinuationToken");
  FSDP_RETURN_IF_ERROR(CheckToken(page.next_token, "NextContinuationToken"));
  return page;
}

absl::StatusOr<UploadsPage> ParseUploadsPage(absl::string_view xml, absl::string_view prefix) {
  FSDP_ASSIGN_OR_RETURN(const Element root, ParseDocument(xml, "ListMultipartUploadsResult"));
  UploadsPage page;
  page.is_truncated = root.Text("IsTruncated") == "true";
  for (const Element& child : root.children) {
    if (child.name != "Upload") continue;
    UploadsPage::Upload upload;
    FSDP_ASSIGN_OR_RETURN(upload.key, ReadKey(child, "Key", prefix));
    upload.id = child.Text("UploadId");
    if (upload.id.empty()) return Broken(absl::StrCat("gives an upload of ", Quote(upload.key), " no UploadId"));
    FSDP_RETURN_IF_ERROR(CheckToken(upload.id, "UploadId"));
    page.uploads.push_back(std::move(upload));
  }
  return page;
}

absl::StatusOr<std::string> ParseUploadId(absl::string_view xml) {
  FSDP_ASSIGN_OR_RETURN(const Element root, ParseDocument(xml, "InitiateMultipartUploadResult"));
  std::string id = root.Text("UploadId");
  if (id.empty()) return Broken("has no UploadId");
  FSDP_RETURN_IF_ERROR(CheckToken(id, "UploadId"));
  return id;
}

S3Error ParseError(absl::string_view xml) {
  const absl::StatusOr<Element> root = ParseDocument(xml, "Error");
  // A reply that is not an error document, such as a proxy's HTML, gives no code; the HTTP status then decides.
  if (!root.ok()) return {};
  return {Printable(root->Text("Code")), Printable(root->Text("Message")), Printable(root->Text("Region"))};
}

}  // namespace fsdp
