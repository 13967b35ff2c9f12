// SPDX-License-Identifier: Apache-2.0
//
// A name is compared component by component. The place of a component among its siblings depends only on the names that
// share its prefix, so the whole is a lexicographic order of keys, and strict.
#include "fsdp/tools/inspect/model_order.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/natural_order.h"

namespace fsdp {
namespace {

// Further components are compared as one, which bounds the work for a name of a megabyte.
constexpr int kComponents = 12;

enum class Place { kEmbedding, kNumbered, kOther, kHead };

struct Component {
  Place place = Place::kOther;
  std::string text;

  bool operator<(const Component& other) const {
    return place != other.place ? place < other.place : IsNaturallyBefore(text, other.text);
  }
};

struct Keyed {
  std::vector<Component> key;
  const std::string* name = nullptr;
};

bool IsNumber(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

std::vector<std::string> ComponentsOf(const std::string& name) {
  return absl::StrSplit(name, absl::MaxSplits('.', kComponents - 1));
}

// Prefixes that numbers follow: "transformer.h".
std::set<std::string> RepeatedParts(const std::vector<std::string>& names) {
  std::set<std::string> repeated;
  for (const std::string& name : names) {
    std::string prefix;
    for (const std::string& component : ComponentsOf(name)) {
      if (!prefix.empty() && IsNumber(component)) repeated.insert(prefix);
      absl::StrAppend(&prefix, prefix.empty() ? "" : ".", component);
    }
  }
  return repeated;
}

Place PlaceOf(const std::string& prefix, const std::string& component, const std::set<std::string>& repeated) {
  const std::string text = absl::AsciiStrToLower(component);
  if (IsNumber(text) || repeated.count(prefix) != 0) return Place::kNumbered;
  if (absl::StrContains(text, "emb") || text == "wte" || text == "wpe") return Place::kEmbedding;
  if (absl::StrContains(text, "head") || text == "output" || text == "classifier") return Place::kHead;
  return Place::kOther;
}

}  // namespace

std::vector<std::string> InModelOrder(const std::vector<std::string>& layers) {
  const std::set<std::string> repeated = RepeatedParts(layers);
  std::vector<Keyed> keyed;
  for (const std::string& name : layers) {
    Keyed& layer = keyed.emplace_back();
    layer.name = &name;
    std::string prefix;
    for (std::string& component : ComponentsOf(name)) {
      absl::StrAppend(&prefix, prefix.empty() ? "" : ".", component);
      layer.key.push_back({PlaceOf(prefix, component, repeated), std::move(component)});
    }
  }
  std::stable_sort(keyed.begin(), keyed.end(), [](const Keyed& a, const Keyed& b) { return a.key < b.key; });
  std::vector<std::string> ordered;
  for (const Keyed& layer : keyed) ordered.push_back(*layer.name);
  return ordered;
}

}  // namespace fsdp
