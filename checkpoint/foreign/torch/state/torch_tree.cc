// SPDX-License-Identifier: Apache-2.0
//
// A pickle is a graph, a tree is not: a value with many references becomes as many nodes. Two bounds keep a small
// hostile pickle from becoming a large tree: depth (kMaxTorchDepth), and memory (pickle_budget.h), which is taken for
// every node before it is created. A node also takes the memory of its results in later stages, up to the report of a
// command, which is more than the node itself: all of them have the full name of a tensor, whose length is the sum of
// the names on its path.
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pickle/inert_globals.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_budget.h"
#include "fsdp/checkpoint/foreign/torch/state/dict_key.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

// Bytes of a tensor that was not taken, and of all later results for any tensor, without its names.
constexpr int64_t kTensorBytes = 160;
constexpr int64_t kLaterTensorBytes = 285;
constexpr int64_t kLaterNames = 1;  // copies of its full name
constexpr int64_t kBranchBytes = 128;
constexpr char kTooLarge[] = "a value too large or too deep to be kept";
constexpr int64_t kMemberBytes = sizeof(TorchNode::Member) + 16;  // and its entry in the index

class TreeBuilder {
 public:
  TreeBuilder(const Pickle& pickle, TorchTensorTaker& tensors)
      : budget_(pickle), tensors_(tensors), holds_tensor_(pickle.node_count(), Holds::kUnknown) {}

  absl::StatusOr<TorchNode> Build(PickleValue value, int depth) {
    if (depth == 0) {
      // The table of tensors exists already; it counts once, at the root, and stays after the tree.
      const int64_t taken = tensors_.memory();
      FSDP_RETURN_IF_ERROR(budget_.Take(value, static_cast<int64_t>(holds_tensor_.size()) + taken, taken));
    }
    if (TorchTensorTaker::IsTensor(value)) return AddTensor(value);
    FSDP_ASSIGN_OR_RETURN(const bool holds_tensor, HoldsTensor(value, depth));
    return holds_tensor ? BuildBranch(value, depth) : BuildValue(value, depth);
  }

 private:
  absl::StatusOr<TorchNode> BuildBranch(PickleValue value, int depth) {
    const int64_t room = kBranchBytes + value.size() * kMemberBytes;  // taken before a member exists
    FSDP_RETURN_IF_ERROR(budget_.Take(value, room, 0));               // freed while the state dict is built
    return value.is(Kind::kDict) ? BuildDict(value, depth) : BuildList(value, depth);
  }

  // A value that is too large, such as the order of a million samples, must not lock the tensors next to it: it is an
  // object. Of a dict or list with such a value the others are kept. To find one costs as much as to read a pickle, so
  // there may be only a few.
  absl::StatusOr<TorchNode> BuildValue(PickleValue value, int depth) {
    constexpr size_t kMostTooLarge = 16;
    constexpr int64_t kMostMembers = 1000;
    const PickleBudget::Sums before = budget_.sums();
    const bool is_known = too_large_.contains(value.id());
    absl::StatusOr<PythonJson> json = absl::ResourceExhaustedError(kTooLarge);
    if (!is_known) json = JsonOfPickle(value, budget_);
    if (absl::IsResourceExhausted(json.status()) && (is_known || too_large_.size() < kMostTooLarge)) {
      budget_.Reset(before);
      too_large_.insert(value.id());
      const bool is_branch = value.is(Kind::kDict) || value.is_sequence();
      if (!is_known && is_branch && value.size() <= kMostMembers) return BuildBranch(value, depth);
      json = ObjectOfPickle(value, absl::StrCat("byte ", value.place(), " of the pickle: ", kTooLarge),
                            /*is_tensor=*/false, budget_);
      if (json.ok()) (*json)["large"] = true;
    }
    FSDP_RETURN_IF_ERROR(json.status());
    return TorchNode::Value(*std::move(json));
  }

  absl::StatusOr<TorchNode> AddTensor(PickleValue value) {
    const bool is_taken = value.is(Kind::kObject);
    FSDP_RETURN_IF_ERROR(
        budget_.Take(value, is_taken ? 0 : kTensorBytes, kLaterTensorBytes + kLaterNames * path_bytes_));
    const int64_t before = is_taken ? 0 : tensors_.memory();
    const absl::StatusOr<uint32_t> tensor = tensors_.Add(value);
    // A form that is not read must not lock the values around it.
    if (absl::IsInvalidArgument(tensor.status())) {
      const std::string what(tensor.status().message());
      FSDP_ASSIGN_OR_RETURN(PythonJson json, ObjectOfPickle(value, what, /*is_tensor=*/true, budget_));
      return TorchNode::Value(std::move(json));
    }
    FSDP_RETURN_IF_ERROR(tensor.status());
    if (!is_taken) FSDP_RETURN_IF_ERROR(budget_.Take(value, std::max<int64_t>(tensors_.memory() - before, 0), 0));
    return TorchNode::Tensor(static_cast<int>(*tensor));
  }

  // True if a tensor is reachable from `value`. Memoized, so each value is walked once and not once for each reference.
  // The entry is kNo while its own items are walked, which ends a cycle; Build refuses a cycle with a tensor by its
  // depth.
  absl::StatusOr<bool> HoldsTensor(PickleValue value, int depth) {
    if (TorchTensorTaker::IsTensor(value)) return true;
    if (!value.is(Kind::kDict) && !value.is_sequence()) return false;
    if (depth > kMaxTorchDepth) {
      return absl::ResourceExhaustedError(absl::StrCat("byte ", value.place(), " of the pickle: more than ",
                                                       kMaxTorchDepth, " values inside each other"));
    }
    if (value.is_leaf()) return false;
    Holds& known = holds_tensor_[Pickle::NodeIndex(value)];
    if (known != Holds::kUnknown) return known == Holds::kYes;
    known = Holds::kNo;
    const bool is_dict = value.is(Kind::kDict);
    for (int64_t i = 0; i < value.size(); ++i) {
      FSDP_ASSIGN_OR_RETURN(const bool holds, HoldsTensor(is_dict ? value.member(i).second : value.at(i), depth + 1));
      if (!holds) continue;
      known = Holds::kYes;
      return true;
    }
    return false;
  }

  absl::StatusOr<TorchNode> BuildDict(PickleValue value, int depth) {
    TorchNode node;
    node.is_ordered = value.dict_type() == PickleDict::kOrdered;
    node.is_counter = value.dict_type() == PickleDict::kCounter;
    node.Reserve(value.size());
    for (int64_t i = 0; i < value.size(); ++i) {
      const auto [key, member] = value.member(i);
      FSDP_ASSIGN_OR_RETURN(DictKey name, DictKeyOf(key, budget_));
      const TorchNode* const other = node.Find(name.text);
      if (other != nullptr && other->has_json_name != name.is_json) name.Respell();
      FSDP_ASSIGN_OR_RETURN(TorchNode child, BuildMember(name.text, member, depth));
      if (name.object) child = TorchNode::Value(*std::move(name.object));
      child.has_json_name = name.is_json;
      if (node.Add(name.text, std::move(child)) != nullptr) continue;
      return absl::DataLossError(
          absl::StrCat("byte ", value.place(), " of the pickle: a dict has the key ", Quote(name.text), " twice"));
    }
    return node;
  }

  absl::StatusOr<TorchNode> BuildList(PickleValue value, int depth) {
    TorchNode node;
    node.is_list = true;
    node.is_tuple = value.is(Kind::kTuple);
    node.Reserve(value.size());
    for (int64_t i = 0; i < value.size(); ++i) {
      const std::string name = absl::StrCat(i);
      FSDP_ASSIGN_OR_RETURN(TorchNode child, BuildMember(name, value.at(i), depth));
      node.Add(name, std::move(child));
    }
    return node;
  }

  absl::StatusOr<TorchNode> BuildMember(const std::string& name, PickleValue value, int depth) {
    const auto nbytes = static_cast<int64_t>(name.size());
    // Once for the node's copy of the name, and once for the key that the state dict builds from it.
    FSDP_RETURN_IF_ERROR(budget_.Take(value, nbytes, nbytes));
    path_bytes_ += nbytes + 1;
    absl::StatusOr<TorchNode> child = Build(value, depth + 1);
    path_bytes_ -= nbytes + 1;
    return child;
  }

  enum class Holds : uint8_t { kUnknown, kNo, kYes };

  PickleBudget budget_;
  TorchTensorTaker& tensors_;
  int64_t path_bytes_ = 0;                   // of the full name of the value that is being built
  std::vector<Holds> holds_tensor_;          // by Pickle::NodeIndex
  absl::flat_hash_set<uint32_t> too_large_;  // by PickleValue::id
};

// CheckHoldsNoShards of the nodes from `node` on. The depth of a tree is bounded.
absl::Status CheckNode(const std::string& name, const TorchNode& node, const TorchTensors& tensors) {
  for (const auto& [key, member] : node.members()) {
    FSDP_RETURN_IF_ERROR(CheckNode(name.empty() ? key : absl::StrCat(name, ".", key), member, tensors));
  }
  if (node.kind() != TorchNode::Kind::kTensor) return absl::OkStatus();
  const DTensor* const whole = tensors.dtensor(node.tensor());
  if (whole == nullptr || whole->is_whole()) return absl::OkStatus();
  const int64_t place = whole->mesh->place;
  return absl::InvalidArgumentError(absl::StrCat(
      Quote(name), " is the part ", tensors.shape(node.tensor()).ToString(), " of a tensor ", whole->shape.ToString(),
      ", ", whole->ToString(), place < 0 ? "" : absl::StrCat(", that rank ", whole->mesh->ranks[place], " has"),
      ": put the files of all these ranks into one directory, as NAME_RANK.pt (model_0.pt, model_1.pt, ...), and give "
      "the directory"));
}

}  // namespace

TorchNode TorchNode::Tensor(int index) {
  TorchNode node;
  node.kind_ = Kind::kTensor;
  node.tensor_ = index;
  return node;
}

TorchNode TorchNode::Value(PythonJson value) {
  TorchNode node;
  node.kind_ = Kind::kValue;
  node.value_ = std::make_unique<PythonJson>(std::move(value));
  return node;
}

// The index has the numbers of the members and hashes their names, so that no name is stored twice. A branch with few
// members has no index: an optimizer has a branch of three for each parameter.
struct TorchNode::Branch {
  struct Hash {
    using is_transparent = void;
    const std::vector<Member>* members;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
    size_t operator()(uint32_t i) const { return (*this)(std::string_view((*members)[i].first)); }
  };
  struct Equal {
    using is_transparent = void;
    const std::vector<Member>* members;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(uint32_t i, std::string_view name) const { return (*members)[i].first == name; }
    bool operator()(std::string_view name, uint32_t i) const { return (*members)[i].first == name; }
  };

  using IndexSet = absl::flat_hash_set<uint32_t, Hash, Equal>;
  static constexpr size_t kMostWithoutIndex = 8;

  // Creates the index once there will be more than a few members.
  void MakeIndex(size_t count) {
    if (index != nullptr || count <= kMostWithoutIndex) return;
    index = std::make_unique<IndexSet>(0, Hash{&members}, Equal{&members});
    index->reserve(count);
    for (size_t i = 0; i < members.size(); ++i) index->insert(static_cast<uint32_t>(i));
  }

  TorchNode* Find(std::string_view name) {
    if (index != nullptr) {
      const auto at = index->find(name);
      return at == index->end() ? nullptr : &members[*at].second;
    }
    const auto at =
        std::find_if(members.begin(), members.end(), [&](const Member& member) { return member.first == name; });
    return at == members.end() ? nullptr : &at->second;
  }

  std::vector<Member> members;
  std::unique_ptr<IndexSet> index;
};

TorchNode::TorchNode() = default;
TorchNode::TorchNode(TorchNode&&) noexcept = default;
TorchNode::~TorchNode() = default;

TorchNode::TorchNode(const TorchNode& other)
    : kind_(other.kind_),
      tensor_(other.tensor_),
      value_(other.value_ == nullptr ? nullptr : std::make_unique<PythonJson>(*other.value_)) {
  TakeForm(other);
  // Numbers of members are equal in the copy, but the index hashes through the copy's own vector: Add builds a new one.
  Reserve(static_cast<int64_t>(other.members().size()));
  for (const auto& [name, member] : other.members()) Add(name, member);
}

TorchNode& TorchNode::operator=(TorchNode other) noexcept {
  TakeForm(other);
  kind_ = other.kind_;
  tensor_ = other.tensor_;
  value_ = std::move(other.value_);
  branch_ = std::move(other.branch_);
  return *this;
}

void TorchNode::TakeForm(const TorchNode& other) {
  is_list = other.is_list;
  is_tuple = other.is_tuple;
  is_ordered = other.is_ordered;
  is_counter = other.is_counter;
  has_json_name = other.has_json_name;
}

const PythonJson& TorchNode::value() const {
  static const auto* const none = new PythonJson;
  return value_ == nullptr ? *none : *value_;
}

absl::Status TorchNode::Consume(const std::function<absl::Status(const std::string& name, TorchNode& member)>& use) {
  if (branch_ == nullptr) return absl::OkStatus();
  const std::unique_ptr<Branch> branch = std::move(branch_);
  // The index refers to members by number and name; it must be freed before the members change.
  branch->index = nullptr;
  for (Member& member : branch->members) {
    FSDP_RETURN_IF_ERROR(use(member.first, member.second));
    // Frees each member before the next one is used: the results replace the tree piece by piece.
    member = Member();
  }
  return absl::OkStatus();
}

const std::vector<TorchNode::Member>& TorchNode::members() const {
  static const auto* const none = new std::vector<Member>;
  return branch_ == nullptr ? *none : branch_->members;
}

const TorchNode* TorchNode::Find(const std::string& name) const {
  return branch_ == nullptr ? nullptr : branch_->Find(name);
}

TorchNode* TorchNode::Find(const std::string& name) {
  return const_cast<TorchNode*>(static_cast<const TorchNode*>(this)->Find(name));
}

TorchNode* TorchNode::Add(const std::string& name, TorchNode node) {
  if (Find(name) != nullptr) return nullptr;
  if (branch_ == nullptr) branch_ = std::make_unique<Branch>();
  branch_->members.emplace_back(name, std::move(node));
  branch_->MakeIndex(branch_->members.size());
  if (branch_->index != nullptr) branch_->index->insert(static_cast<uint32_t>(branch_->members.size() - 1));
  return &branch_->members.back().second;
}

void TorchNode::Reserve(int64_t count) {
  if (count == 0) return;
  if (branch_ == nullptr) branch_ = std::make_unique<Branch>();
  branch_->members.reserve(count);
  branch_->MakeIndex(count);
}

bool HoldsTensor(const TorchNode& node) {
  return node.kind() == TorchNode::Kind::kTensor ||
         std::any_of(node.members().begin(), node.members().end(),
                     [](const auto& member) { return HoldsTensor(member.second); });
}

absl::Status CheckHoldsNoShards(const TorchTree& tree) {
  if (!tree.tensors.has_dtensors()) return absl::OkStatus();
  return CheckNode("", tree.root, tree.tensors);
}

absl::StatusOr<TorchTree> TreeOfPickle(const Pickle& pickle, TorchTensorTaker* taken) {
  TorchTensorTaker none;
  TorchTensorTaker& tensors = taken == nullptr ? none : *taken;
  TorchTree tree;
  FSDP_ASSIGN_OR_RETURN(tree.root, TreeBuilder(pickle, tensors).Build(pickle.root(), 0));
  tree.tensors = tensors.Finish();
  return tree;
}

absl::StatusOr<TorchTree> ParseTorchTree(std::string_view bytes) {
  TorchTensorTaker tensors;
  PickleOptions options = TorchPickleOptions();
  options.objects = &tensors;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Pickle> pickle, Pickle::Parse(bytes, options));
  return TreeOfPickle(*pickle, &tensors);
}

}  // namespace fsdp
