// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/tree_testutil.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// nullopt for a text that is no tensor.
std::optional<TorchLeafType> TypeOf(const std::string& text) {
  const size_t open = text.find('[');
  const size_t close = text.find(']');
  if (open == text.npos || close == text.npos) return std::nullopt;
  const absl::StatusOr<DType> dtype = ParseDType(text.substr(0, open));
  if (!dtype.ok()) return std::nullopt;
  std::vector<int64_t> dims;
  for (const auto& dim : absl::StrSplit(text.substr(open + 1, close - open - 1), ',', absl::SkipEmpty())) {
    dims.push_back(std::atoll(std::string(dim).c_str()));
  }
  return TorchLeafType{*dtype, *Shape::Create(dims)};
}

std::string ElementOf(const std::string& text, DType dtype) {
  const size_t equals = text.find('=');
  std::string bytes(SizeOf(dtype), '\0');
  if (equals == text.npos) return bytes;
  const double value = std::strtod(text.c_str() + equals + 1, nullptr);
  if (!Convert(DType::kFloat64, &value, dtype, bytes.data(), 1).ok()) std::abort();
  return bytes;
}

bool HoldsTensor(const PythonJson& json) {
  if (json.is_string()) return TypeOf(json.get<std::string>()).has_value();
  return json.is_structured() && std::any_of(json.begin(), json.end(), HoldsTensor);
}

TorchNode NodeOf(const PythonJson& json, TestTree& tree) {
  if (!HoldsTensor(json)) return TorchNode::Value(json);
  if (json.is_string()) {
    const auto text = json.get<std::string>();
    tree.types.push_back(*TypeOf(text));
    tree.elements.push_back(ElementOf(text, tree.types.back().dtype));
    return TorchNode::Tensor(static_cast<int>(tree.types.size() - 1));
  }
  TorchNode node;
  node.is_list = json.is_array();
  int64_t index = 0;
  for (const auto& [key, member] : json.items()) {
    node.Add(node.is_list ? absl::StrCat(index++) : key, NodeOf(member, tree));
  }
  return node;
}

}  // namespace

TestTree::TestTree(const std::string& json) { root = NodeOf(PythonJson::parse(json), *this); }

absl::StatusOr<TorchState> TestTree::State(TorchStateOptions options) const {
  options.read = [this](int tensor, const Interval& interval, std::byte* out) {
    for (int64_t i = 0; i < interval.size(); ++i) {
      out = std::copy_n(reinterpret_cast<const std::byte*>(elements[tensor].data()), elements[tensor].size(), out);
    }
    return absl::OkStatus();
  };
  return StateOfTree(root, types, options);
}

bool IsForm(const StateValue& value) {
  const auto* const text = std::get_if<std::string>(&value);
  return text != nullptr && absl::StrContains(*text, R"("__python__":"reference")");
}

std::vector<std::string> Listing(const StateDict& state) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : state.entries()) {
    if (IsForm(value)) continue;
    const auto* const tensor = std::get_if<ShardedTensor>(&value);
    lines.push_back(tensor == nullptr ? absl::StrCat(key.ToString(), " = ", std::get<std::string>(value))
                                      : absl::StrCat(key.ToString(), " ", std::string(DTypeName(tensor->dtype)),
                                                     tensor->shape.ToString()));
  }
  return lines;
}

}  // namespace fsdp
