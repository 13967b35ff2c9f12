// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/run_facts.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/storage/file_age.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/page/html.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Section = StateKey::Section;

constexpr size_t kMaxFacts = 120;  // of one heading
constexpr size_t kMaxSections = 16;
constexpr size_t kMaxParamGroups = 16;
constexpr size_t kMaxTexts = 1000;
constexpr size_t kWholeValue = 256;

// The text of a small regular file; empty for another file, or one that cannot be read.
std::string SmallText(const std::string& path) {
  std::error_code error;
  // Before it is opened: the open of a FIFO would wait.
  if (!fs::is_regular_file(path, error)) return "";
  const absl::StatusOr<std::unique_ptr<File>> file = PosixFileSystem().Open(path);
  if (!file.ok()) return "";
  const absl::StatusOr<int64_t> size = (*file)->Size();
  if (!size.ok() || *size > kMaxFactBytes) return "";
  std::string text(*size, '\0');
  const absl::Status read = (*file)->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size()));
  return read.ok() ? text : "";
}

// The file whose date is the checkpoint's: the last that a save writes.
std::string DatedFile(const std::string& path) {
  std::error_code error;
  const std::string manifest = JoinPath(path, "manifest.json");
  return fs::exists(manifest, error) ? manifest : path;
}

// A list of facts under a heading.
class FactList {
 public:
  explicit FactList(std::string title) : title_(std::move(title)) {}

  void Add(const std::string& name, const std::string& value) {
    if (++count_ > kMaxFacts) return;
    // Name() would show the quotes of JSON with backslashes; but it cuts what is long.
    const std::string shown = value.size() <= kWholeValue ? "<bdi>" + EscapeHtml(value) + "</bdi>" : Name(value);
    absl::StrAppend(&rows_, "<div><dt>", Name(name), "</dt><dd>", shown, "</dd></div>\n");
  }

  // Nothing without a fact.
  std::string Html() const {
    if (count_ == 0) return "";
    const std::string more = count_ > kMaxFacts ? absl::StrCat("<p>", count_ - kMaxFacts, " more</p>\n") : "";
    return absl::StrCat("<h3>", EscapeHtml(title_), "</h3><dl class=\"facts\">\n", rows_, "</dl>\n", more);
  }

 private:
  const std::string title_;
  std::string rows_;
  size_t count_ = 0;
};

// Discarded unless it is JSON. Values nested deeper than any config's are dropped: to print them takes a stack frame
// each.
Json ParseShallow(const std::string& text) {
  constexpr int kDeepest = 8;
  return Json::parse(
      text, [](int depth, Json::parse_event_t, Json&) { return depth <= kDeepest; },
      /*allow_exceptions=*/false);
}

// JSON's scalars as they are; lists by their length if they are long.
std::string Shown(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr size_t kLongest = 60;
  if (text.size() <= kLongest || !value.is_structured()) return text;
  return absl::StrCat(value.size(), value.is_array() ? " values" : " members");
}

// "model.n_head" is "n_head" under "model"; a name without a section is under "run".
std::string AttributesHtml(const RunMetadata& attributes) {
  std::map<std::string, FactList> lists;
  size_t left_out = 0;
  for (const auto& [name, value] : attributes) {
    const size_t dot = name.find('.');
    const std::string section = dot == std::string::npos ? "run" : Printable(name.substr(0, dot));
    // Sections are few, unless the names are hostile.
    if (lists.size() == kMaxSections && lists.count(section) == 0) {
      ++left_out;
      continue;
    }
    const auto* text = std::get_if<std::string>(&value);
    lists.try_emplace(section, section)
        .first->second.Add(dot == std::string::npos ? name : name.substr(dot + 1),
                           text != nullptr ? *text : ToString(value));
  }
  std::string html;
  for (const auto& [section, list] : lists) html += list.Html();
  if (left_out > 0) absl::StrAppend(&html, "<p>", left_out, " more in other sections</p>\n");
  return html;
}

std::string ConfigHtml(const std::string& text) {
  const Json config = ParseShallow(text);
  if (!config.is_object()) return "";
  FactList list("config.json");
  for (const auto& [name, value] : config.items()) list.Add(name, Shown(value));
  return list.Html();
}

// A list for each group: its options, and how many parameters it has.
std::string ParamGroupsHtml(const std::string& text) {
  const Json groups = ParseShallow(text);
  if (!groups.is_array()) return "";
  std::string html;
  for (size_t i = 0; i < std::min(groups.size(), kMaxParamGroups); ++i) {
    if (!groups[i].is_object()) continue;
    FactList list(groups.size() == 1 ? "param_groups" : absl::StrCat("param_groups, ", i + 1, " of ", groups.size()));
    for (const auto& [name, value] : groups[i].items()) {
      list.Add(name, name == "params" && value.is_array() ? absl::StrCat(value.size()) : Shown(value));
    }
    html += list.Html();
  }
  if (groups.size() > kMaxParamGroups) {
    absl::StrAppend(&html, "<p>", groups.size() - kMaxParamGroups, " more param_groups</p>\n");
  }
  return html;
}

std::string TextsHtml(const RunFacts& facts) {
  FactList list("values");
  for (const auto& [key, text] : facts.texts) {
    if (key.section != Section::kParamGroups) list.Add(key.fqn, text);
  }
  for (const auto& [key, nbytes] : facts.longer_texts) {
    list.Add(key.ToString(), absl::StrCat("a text of ", FormatBytes(static_cast<double>(nbytes))));
  }
  return list.Html();
}

}  // namespace

RunFacts ReadRunFacts(const std::string& path, const TensorSource& source) {
  RunFacts facts;
  facts.absolute_path = AbsolutePath(path);
  facts.date = DateText(DatedFile(path));
  facts.attributes = source.contents().attributes;
  for (const auto& [key, value] : source.contents().entries()) {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr || facts.texts.size() + facts.longer_texts.size() == kMaxTexts) continue;
    const bool is_whole =
        std::ssize(*text) <= (key.section == Section::kParamGroups ? kMaxParamGroupsBytes : kMaxFactBytes);
    if (is_whole) {
      facts.texts.emplace(key, *text);
    } else {
      facts.longer_texts.emplace(key, std::ssize(*text));
    }
  }
  facts.config = SmallText(JoinPath(path, "config.json"));
  return facts;
}

std::string FactsSection(const RunFacts& facts) {
  std::string html = absl::StrCat(AttributesHtml(facts.attributes), ConfigHtml(facts.config));
  const auto groups = facts.texts.find(StateKey::ParamGroups());
  if (groups != facts.texts.end()) html += ParamGroupsHtml(groups->second);
  html += TextsHtml(facts);
  if (html.empty()) return "";
  return absl::StrCat("<section class=\"about\"><h2>The run</h2><p>What the checkpoint records about itself.</p>\n",
                      html, "</section>\n");
}

std::string AbsolutePath(const std::string& path) {
  if (IsS3Url(path)) return path;
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  if (error) return path;
  return (absolute.has_filename() ? absolute : absolute.parent_path()).string();
}

std::string ShortPath(const std::string& absolute_path) {
  const fs::path path(absolute_path);
  const fs::path parent = path.parent_path().filename();
  return parent.empty() ? absolute_path : (parent / path.filename()).string();
}

}  // namespace fsdp
