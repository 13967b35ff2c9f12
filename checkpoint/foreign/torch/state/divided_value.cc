// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/divided_value.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

bool HoldsTensor(const TorchNode& node) {
  return node.kind() == Kind::kTensor || std::any_of(node.members().begin(), node.members().end(),
                                                     [](const auto& member) { return HoldsTensor(member.second); });
}

std::string JsonText(const std::string& text) {
  return PythonJson(text).dump(-1, ' ', false, PythonJson::error_handler_t::replace);
}

class Divider {
 public:
  explicit Divider(const std::function<absl::Status(const std::string&, const TorchNode&)>& add) : add_(add) {}

  absl::Status Append(const std::string& name, const TorchNode& node) {
    if (!node.is_branch() || !HoldsTensor(node)) {
      text_ += ReferenceText(name);
      return add_(name, node);
    }
    const bool is_plain = node.IsPlainDict();
    const char* const tag = node.Tag();
    if (tag != nullptr) absl::StrAppend(&text_, "{\"", kPythonTag, "\":\"", tag, "\",\"items\":");
    text_ += is_plain ? "{" : "[";
    const char* separator = "";
    for (const auto& [key, member] : node.members()) {
      const std::string shown = member.has_int_name ? key : JsonText(key);
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
  const std::function<absl::Status(const std::string&, const TorchNode&)>& add_;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::string> DivideValue(
    const std::string& name, const TorchNode& node,
    const std::function<absl::Status(const std::string& name, const TorchNode& part)>& add) {
  Divider divider(add);
  FSDP_RETURN_IF_ERROR(divider.Append(name, node));
  return std::move(divider).Finish();
}

}  // namespace fsdp
