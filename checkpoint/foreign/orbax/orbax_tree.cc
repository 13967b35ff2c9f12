// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/orbax_tree.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// The types of values that have no elements. A leaf of another type that is not to be deserialized was aggregated.
constexpr std::array<std::string_view, 5> kEmptyTypes = {"None", "Dict", "List", "Tuple", "NamedTuple"};

bool IsTrue(const std::optional<JsonView>& value) { return value && value->text() == "true"; }

absl::StatusOr<OrbaxLeaf> ParseLeaf(const JsonView& entry) {
  FSDP_ASSIGN_OR_RETURN(const JsonView keys, ArrayMember(entry, "key_metadata"));
  OrbaxLeaf leaf;
  bool is_first = true;
  for (const JsonView item : keys) {
    const std::optional<JsonView> key = item.Find("key");
    if (!key || key->is_object() || key->is_array())
      return absl::DataLossError("an element of key_metadata has no key");
    absl::StrAppend(&leaf.name, is_first ? "" : ".", key->string().value_or(std::string(key->text())));
    is_first = false;
  }
  const std::optional<JsonView> value = entry.Find("value_metadata");
  if (!value) return absl::DataLossError("member \"value_metadata\" is missing");
  FSDP_ASSIGN_OR_RETURN(const std::string type, StringMember(*value, "value_type"));
  if (std::find(kEmptyTypes.begin(), kEmptyTypes.end(), type) != kEmptyTypes.end()) {
    leaf.kind = OrbaxLeaf::Kind::kEmpty;
  } else if (IsTrue(value->Find("skip_deserialize"))) {
    leaf.kind = OrbaxLeaf::Kind::kAggregated;
  } else if (type == "string") {
    leaf.kind = OrbaxLeaf::Kind::kText;
  }
  if (leaf.name.empty() && leaf.kind != OrbaxLeaf::Kind::kEmpty) return absl::DataLossError("its name is empty");
  return leaf;
}

}  // namespace

absl::StatusOr<JsonView> ParseJsonOfPython(std::string& text) {
  absl::StatusOr<JsonView> strict = JsonView::Parse(text);
  if (strict.ok()) return strict;
  std::string replaced =
      absl::StrReplaceAll(text, {{": NaN", ": null"}, {": Infinity", ": null"}, {": -Infinity", ": null"}});
  if (replaced == text) return strict;
  text = std::move(replaced);
  return JsonView::Parse(text);
}

absl::StatusOr<OrbaxTree> ParseOrbaxTree(std::string_view json) {
  std::string text(json);
  FSDP_ASSIGN_OR_RETURN(const JsonView root, ParseJsonOfPython(text));
  const std::optional<JsonView> entries = root.Find("tree_metadata");
  if (!entries || !entries->is_object()) return absl::DataLossError("member \"tree_metadata\" is missing");
  OrbaxTree tree;
  tree.use_ocdbt = IsTrue(root.Find("use_ocdbt"));
  tree.stores_every_chunk = IsTrue(root.Find("store_array_data_equal_to_fill_value"));
  absl::flat_hash_set<std::string> names;
  for (const auto& [keypath, entry] : entries->members()) {
    absl::StatusOr<OrbaxLeaf> leaf = ParseLeaf(entry);
    if (!leaf.ok()) return Annotate(leaf.status(), absl::StrCat("tree_metadata, ", Quote(keypath)));
    if (!names.insert(leaf->name).second) {
      return absl::DataLossError(absl::StrCat("two leaves of tree_metadata have the name ", Quote(leaf->name)));
    }
    tree.leaves.push_back(*std::move(leaf));
  }
  return tree;
}

}  // namespace fsdp
