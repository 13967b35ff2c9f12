// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_values.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// Sums of counts stay far below the limit of int64.
constexpr int64_t kMaxCount = int64_t{1} << 50;

absl::Status Unexpected(const std::string& what, const std::string& expected) {
  return absl::DataLossError(absl::StrCat(Quote(what), " is not ", expected));
}

std::optional<int64_t> CountOf(const PythonJson& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    return number <= uint64_t{kMaxCount} ? std::make_optional(static_cast<int64_t>(number)) : std::nullopt;
  }
  const auto number = value.get<int64_t>();
  return number >= 0 && number <= kMaxCount ? std::make_optional(number) : std::nullopt;
}

bool HasTag(const PythonJson& value, const char* tag) {
  if (!value.is_object()) return false;
  const auto at = value.find(kPythonTag);
  return at != value.end() && *at == tag;
}

// torch.Size([2, 3]), or a plain list or tuple.
std::optional<std::vector<PythonJson>> SizesOf(const PythonJson& value) {
  if (!HasTag(value, "call")) return ItemsOf(value);
  const auto name = value.find("name");
  const auto items = value.find("items");
  if (name == value.end() || *name != "torch.Size" || items == value.end() || !items->is_array()) return std::nullopt;
  return items->size() == 1 ? ItemsOf((*items)[0]) : std::nullopt;
}

}  // namespace

const TorchNode* FindValue(const TorchNode& dict, const std::string& name) {
  const TorchNode* const node = dict.Find(name);
  const bool is_none = node == nullptr || (node->kind() == TorchNode::Kind::kValue && node->value().is_null());
  return is_none ? nullptr : node;
}

absl::StatusOr<std::optional<int64_t>> FindCount(const TorchNode& dict, const std::string& name) {
  const TorchNode* const node = FindValue(dict, name);
  if (node == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> count = CountOf(node->value());
  if (!count) return Unexpected(name, "a count");
  return count;
}

// A tuple of Python has a tag, so that it comes back as a tuple; here only its items matter.
std::optional<std::vector<PythonJson>> ItemsOf(const PythonJson& value) {
  const PythonJson* items = &value;
  if (HasTag(value, "tuple")) {
    const auto at = value.find("items");
    if (at == value.end()) return std::nullopt;
    items = &*at;
  }
  if (!items->is_array()) return std::nullopt;
  return std::vector<PythonJson>(items->begin(), items->end());
}

absl::StatusOr<NamedShapes> ShapesOf(const PythonJson& value, const std::string& what) {
  const std::optional<PythonJson> members = MembersOf(value);
  if (!members) return Unexpected(what, "a dict of names and shapes");
  NamedShapes shapes;
  shapes.reserve(members->size());
  for (const auto& [name, size] : members->items()) {
    const std::optional<std::vector<PythonJson>> items = SizesOf(size);
    if (!items || items->size() > 64) return Unexpected(absl::StrCat(what, ".", name), "a torch.Size");
    std::vector<int64_t> dims;
    for (const PythonJson& item : *items) {
      const std::optional<int64_t> dim = CountOf(item);
      if (!dim) return Unexpected(absl::StrCat(what, ".", name), "a torch.Size");
      dims.push_back(*dim);
    }
    const absl::StatusOr<Shape> shape = Shape::Create(dims);
    if (!shape.ok() || shape->numel() > kMaxCount) {
      return Unexpected(absl::StrCat(what, ".", name), "the shape of a tensor");
    }
    shapes.emplace_back(name, *shape);
  }
  return shapes;
}

absl::StatusOr<std::vector<NamedShapes>> FindShapeDicts(const TorchNode& dict, const std::string& name) {
  std::vector<NamedShapes> dicts;
  const TorchNode* const node = FindValue(dict, name);
  if (node == nullptr) return dicts;
  const std::optional<std::vector<PythonJson>> items = ItemsOf(node->value());
  if (!items) return Unexpected(name, "a list of dicts of names and shapes");
  for (const PythonJson& item : *items) {
    FSDP_ASSIGN_OR_RETURN(NamedShapes shapes, ShapesOf(item, absl::StrCat(name, ".", dicts.size())));
    dicts.push_back(std::move(shapes));
  }
  return dicts;
}

absl::StatusOr<std::vector<int64_t>> CountsOf(const PythonJson& value, const std::string& what) {
  const std::optional<std::vector<PythonJson>> items = ItemsOf(value);
  std::vector<int64_t> counts;
  for (const PythonJson& item : items ? *items : std::vector<PythonJson>{value}) {
    const std::optional<int64_t> count = CountOf(item);
    if (!count) return Unexpected(what, "a list of counts");
    counts.push_back(*count);
  }
  return counts;
}

absl::StatusOr<std::optional<std::vector<int64_t>>> FindCounts(const TorchNode& dict, const std::string& name) {
  const TorchNode* const node = FindValue(dict, name);
  if (node == nullptr) return std::optional<std::vector<int64_t>>();
  FSDP_ASSIGN_OR_RETURN(std::vector<int64_t> counts, CountsOf(node->value(), name));
  return std::optional<std::vector<int64_t>>(std::move(counts));
}

}  // namespace fsdp
