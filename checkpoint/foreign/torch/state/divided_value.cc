// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/divided_value.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"

namespace fsdp {
namespace {

using AddPart = std::function<absl::StatusOr<std::string>(const std::string& name, const TorchNode& part)>;

std::string JsonText(const std::string& text) {
  return PythonJson(text).dump(-1, ' ', false, PythonJson::error_handler_t::replace);
}

class Divider {
 public:
  explicit Divider(const AddPart& add) : add_(add) {}

  absl::Status Append(const std::string& name, const TorchNode& node) {
    if (!node.is_branch() || !HoldsTensor(node)) {
      FSDP_ASSIGN_OR_RETURN(const std::string part, add_(name, node));
      text_ += ReferenceText(part);
      return absl::OkStatus();
    }
    const bool is_plain = node.IsPlainDict();
    const char* const tag = node.Tag();
    if (tag != nullptr) absl::StrAppend(&text_, "{\"", kPythonTag, "\":\"", tag, "\",\"items\":");
    text_ += is_plain ? "{" : "[";
    const char* separator = "";
    for (const auto& [key, member] : node.members()) {
      // Without the space of a key that was spelled again (dict_key.h): a text of ours has one spelling.
      const std::string shown =
          member.has_json_name ? std::string(absl::StripLeadingAsciiWhitespace(key)) : JsonText(key);
      absl::StrAppend(&text_, separator,
                      node.is_list ? ""
                      : is_plain   ? absl::StrCat(shown, ":")
                                   : absl::StrCat("[", shown, ","));
      FSDP_RETURN_IF_ERROR(Append(absl::StrCat(name, ".", key), member));
      if (!node.is_list && !is_plain) text_ += "]";
      separator = ",";
    }
    text_ += is_plain ? "}" : "]";
    if (tag != nullptr) text_ += "}";
    return absl::OkStatus();
  }

  std::string Finish() && { return std::move(text_); }

 private:
  const AddPart& add_;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::string> DivideValue(const std::string& name, const TorchNode& node, const AddPart& add) {
  Divider divider(add);
  FSDP_RETURN_IF_ERROR(divider.Append(name, node));
  return std::move(divider).Finish();
}

// Only a key with a dot can be the path of a part. A model has many, which are not extra values.
void PartNames::Reserve(const TreePlace& place, const TorchNode& node) {
  if (place.is_model()) return;
  for (const auto& [key, member] : node.members()) {
    const bool is_weight = member.kind() == TorchNode::Kind::kTensor && place.role == TorchBranch::Role::kTopModel;
    if (!is_weight && absl::StrContains(key, '.')) reserved_.insert(place.Inside(key).path);
  }
}

std::string PartNames::NameOf(const std::string& path, const StateDict& contents) const {
  const std::string plain = absl::StrReplaceAll(path, {{absl::string_view("\0", 1), "\\0"}});
  std::string name = plain;
  for (int i = 2; reserved_.contains(name) || contents.contains(StateKey::Extra(name)); ++i) {
    name = absl::StrCat(plain, "~", i);
  }
  return name;
}

}  // namespace fsdp
