// SPDX-License-Identifier: Apache-2.0
//
// Objects are values with kObjectTag in the JSON of the tree. Recursion is as deep as a tree and a value can be
// (kMaxTorchDepth, kMaxPythonDepth).
#include "fsdp/checkpoint/foreign/torch/state/torch_objects.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/foreign/torch/pickle/inert_globals.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

constexpr size_t kMostNamed = 100;

std::string Joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

// The tag of `json`; "" if there is no tag.
std::string TagOf(const PythonJson& json) {
  const auto tag = json.is_object() ? json.find(kPythonTag) : json.end();
  return json.is_object() && tag != json.end() && tag->is_string() ? tag->get<std::string>() : "";
}

// The first object in `json`, or null.
const PythonJson* FindObject(const PythonJson& json) {
  if (TagOf(json) == kObjectTag) return &json;
  if (!json.is_structured()) return nullptr;
  for (const PythonJson& item : json) {
    if (const PythonJson* const found = FindObject(item)) return found;
  }
  return nullptr;
}

bool HoldsObject(const TorchNode& node) {
  if (node.kind() == Kind::kValue) return FindObject(node.value()) != nullptr;
  return std::any_of(node.members().begin(), node.members().end(),
                     [](const auto& member) { return HoldsObject(member.second); });
}

// Takes objects of classes out of a tree and keeps everything around them: a list keeps its length with None in the
// place, a dict loses the member, a set the element. The rest comes back as it was.
class ObjectTaker {
 public:
  void TakeFrom(TorchNode& node, const std::string& path) {
    if (!HoldsObject(node)) return;
    if (node.kind() == Kind::kValue) {
      node = TorchNode::Value(Without(node.value(), path).value_or(PythonJson()));
      return;
    }
    TorchNode kept;
    kept.TakeForm(node);
    const bool is_list = node.is_list;
    (void)node.Consume([&](const std::string& name, TorchNode& member) {
      const bool is_object = member.kind() == Kind::kValue && !HoldsMore(member.value());
      TakeFrom(member, Joined(path, name));
      if (!is_object || is_list) kept.Add(name, std::move(member));
      return absl::OkStatus();
    });
    node = std::move(kept);
  }

  std::vector<TorchObject> Finish() && { return std::move(objects_); }

 private:
  // False for a value of which nothing is left without its objects.
  static bool HoldsMore(const PythonJson& json) { return FindObject(json) == nullptr || IsContainer(json); }

  static bool IsContainer(const PythonJson& json) {
    const std::string tag = TagOf(json);
    return json.is_array() || (json.is_object() && (tag.empty() || IsSequence(tag) || IsDict(tag)));
  }
  static bool IsSequence(const std::string& tag) { return tag == "tuple" || tag == "set" || tag == "frozenset"; }
  static bool IsDict(const std::string& tag) { return tag == "dict" || tag == "OrderedDict" || tag == "Counter"; }

  // `json` without its objects; nullopt if nothing is left.
  std::optional<PythonJson> Without(const PythonJson& json, const std::string& path) {
    const PythonJson* const object = FindObject(json);
    if (object == nullptr) return json;
    if (!IsContainer(json)) {
      objects_.push_back({path, object->value("name", std::string()), object->value("place", int64_t{0})});
      return std::nullopt;
    }
    const std::string tag = TagOf(json);
    if (json.is_array()) return Items(json, path, /*keeps_places=*/true);
    if (tag.empty()) return Members(json, path);
    PythonJson kept = json;
    kept["items"] = IsDict(tag) ? Pairs(json["items"], path) : Items(json["items"], path, tag == "tuple");
    return kept;
  }

  PythonJson Items(const PythonJson& items, const std::string& path, bool keeps_places) {
    PythonJson kept = PythonJson::array();
    size_t index = 0;
    for (const PythonJson& item : items) {
      std::optional<PythonJson> left = Without(item, Joined(path, absl::StrCat(index++)));
      if (left || keeps_places) kept.push_back(left ? *std::move(left) : PythonJson());
    }
    return kept;
  }

  PythonJson Members(const PythonJson& object, const std::string& path) {
    PythonJson kept = PythonJson::object();
    for (const auto& [name, value] : object.items()) {
      std::optional<PythonJson> left = Without(value, Joined(path, name));
      if (left) AppendMember(kept, name, *std::move(left));
    }
    return kept;
  }

  // A pair whose key is or holds an object is removed as a whole.
  PythonJson Pairs(const PythonJson& pairs, const std::string& path) {
    PythonJson kept = PythonJson::array();
    for (const PythonJson& pair : pairs) {
      const std::string name = pair[0].is_string() ? pair[0].get<std::string>() : pair[0].dump();
      if (const PythonJson* const object = FindObject(pair[0])) {
        objects_.push_back(
            {Joined(path, "a key"), object->value("name", std::string()), object->value("place", int64_t{0})});
        continue;
      }
      std::optional<PythonJson> left = Without(pair[1], Joined(path, name));
      if (left) kept.push_back(PythonJson::array({pair[0], *std::move(left)}));
    }
    return kept;
  }

  std::vector<TorchObject> objects_;
};

}  // namespace

std::string TorchObject::ToString() const {
  const std::string_view advice = AdviceOnGlobal(global);
  return absl::StrCat(
      path.empty() ? "the whole file" : Quote(path), " (an object of ", Quote(global), ", byte ", place,
      " of the pickle: ", advice.empty() ? "save plain values of it, such as vars(object)" : std::string(advice), ")");
}

std::vector<TorchObject> TakeObjects(TorchNode& root) {
  ObjectTaker taker;
  taker.TakeFrom(root, "");
  return std::move(taker).Finish();
}

absl::Status RefuseObjects(const std::vector<TorchObject>& objects) {
  const bool is_whole = objects.size() == 1 && objects[0].path.empty();
  return absl::InvalidArgumentError(
      absl::StrCat("objects of Python classes are not read, and nothing was executed: ",
                   absl::StrJoin(DescribeObjects(objects), ", "),
                   is_whole ? ""
                            : "; set TensorSourceOptions::skip_links to go without them, or read only the model "
                              "(TensorSourceOptions::model_only)"));
}

std::vector<std::string> DescribeObjects(const std::vector<TorchObject>& objects) {
  std::vector<std::string> described;
  for (size_t i = 0; i < std::min(objects.size(), kMostNamed); ++i) described.push_back(objects[i].ToString());
  if (objects.size() > kMostNamed) described.push_back(absl::StrCat("and ", objects.size() - kMostNamed, " more"));
  return described;
}

}  // namespace fsdp
