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
#include "fsdp/checkpoint/foreign/torch/state/branch_facts.h"

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
      TorchNode left = TorchNode::Value(Without(node.value(), path).value_or(PythonJson()));
      left.TakeForm(node);
      node = std::move(left);
      return;
    }
    TorchNode kept;
    kept.TakeForm(node);
    const bool is_list = node.is_list;
    (void)node.Consume([&](const std::string& name, TorchNode& member) {
      const bool is_object = member.kind() == Kind::kValue && !HoldsMore(member.value());
      keys_.push_back(name);
      TakeFrom(member, Joined(path, name));
      keys_.pop_back();
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
      Add(path, *object);
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
        Add(Joined(path, "a key"), *object);
        continue;
      }
      std::optional<PythonJson> left = Without(pair[1], Joined(path, name));
      if (left) kept.push_back(PythonJson::array({pair[0], *std::move(left)}));
    }
    return kept;
  }

  void Add(const std::string& path, const PythonJson& object) {
    TorchObject& added = objects_.emplace_back();
    added.path = path;
    added.global = object.value("name", std::string());
    added.place = object.value("place", int64_t{0});
    added.what = object.value("what", std::string());
    added.is_tensor = object.value("tensor", false);
    added.is_too_large = object.value("large", false);
    if (added.is_tensor) added.keys = keys_;
  }

  std::vector<TorchObject> objects_;
  std::vector<std::string> keys_;  // of the node that is walked
};

constexpr char kGoWithout[] = "; set TensorSourceOptions::skip_links to go without them";

// True for a tensor in a dict with the usual name of a model.
bool HasNameOfModel(const TorchObject& object) {
  return std::any_of(object.keys.begin(), object.keys.end(), IsUsualModelName);
}

absl::Status Refuse(const char* what, const std::vector<TorchObject>& objects, const char* advice) {
  const auto is_too_large = [](const TorchObject& object) { return object.is_too_large; };
  const bool are_too_large = std::all_of(objects.begin(), objects.end(), is_too_large);
  return absl::Status(are_too_large ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInvalidArgument,
                      absl::StrCat(what, " are not read, and nothing was executed: ",
                                   absl::StrJoin(DescribeObjects(objects), ", "), advice));
}

}  // namespace

std::string TorchObject::Kind() const { return what.empty() ? absl::StrCat("an object of ", Quote(global)) : what; }

std::string TorchObject::ToString() const {
  const std::string name = path.empty() ? "the whole file" : Quote(path);
  if (!what.empty()) return absl::StrCat(name, " (", what, ")");
  const std::string_view advice = AdviceOnGlobal(global);
  return absl::StrCat(name, " (", Kind(), ", byte ", place, " of the pickle: ",
                      !advice.empty() ? std::string(advice)
                      : is_tensor     ? "a tensor in a form that is not read: save it as a plain tensor"
                                      : "save plain values of it, such as vars(object)",
                      ")");
}

std::vector<TorchObject> TakeObjects(TorchNode& root) {
  ObjectTaker taker;
  taker.TakeFrom(root, "");
  return std::move(taker).Finish();
}

absl::Status RefuseObjects(const std::vector<TorchObject>& objects) {
  const bool is_whole = objects.size() == 1 && objects[0].path.empty();
  const bool are_tensors = std::all_of(objects.begin(), objects.end(), [](const auto& o) { return o.is_tensor; });
  const bool has_weights = std::any_of(objects.begin(), objects.end(), HasNameOfModel);
  const bool are_values =
      std::all_of(objects.begin(), objects.end(), [](const auto& o) { return !o.is_tensor && o.global.empty(); });
  return Refuse(are_tensors  ? "tensors in other forms"
                : are_values ? "values"
                             : "objects of Python classes",
                objects,
                is_whole      ? ""
                : has_weights ? kGoWithout
                              : "; set TensorSourceOptions::skip_links to go without them, or read only the model "
                                "(TensorSourceOptions::model_only)");
}

absl::Status CheckHoldsNoWeights(const std::vector<TorchObject>& objects, const TreePlace& top, int models) {
  std::vector<TorchObject> weights;
  for (const TorchObject& object : objects) {
    if (!object.is_tensor) continue;
    TreePlace place = top;
    for (size_t i = 0; i < object.keys.size(); ++i) {
      place = i + 1 < object.keys.size() ? place.Inside(object.keys[i]) : place.OfTensor(object.keys[i]);
    }
    if (place.is_model() || HasNameOfModel(object) || models == 0) weights.push_back(object);
  }
  if (weights.empty()) return absl::OkStatus();
  return Refuse("tensors of the model in other forms", weights, kGoWithout);
}

std::vector<std::string> DescribeObjects(const std::vector<TorchObject>& objects) {
  std::vector<std::string> described;
  for (size_t i = 0; i < std::min(objects.size(), kMostNamed); ++i) described.push_back(objects[i].ToString());
  if (objects.size() > kMostNamed) described.push_back(absl::StrCat("and ", objects.size() - kMostNamed, " more"));
  return described;
}

}  // namespace fsdp
