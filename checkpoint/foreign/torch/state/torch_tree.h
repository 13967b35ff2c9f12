// SPDX-License-Identifier: Apache-2.0
//
// TorchTree: the values that torch.save or DCP stored, as nested dicts and lists whose leaves are tensors and plain
// values. torch_state.h finds model and optimizer in a tree without knowing the format it came from.
//
// From a file to a tensor that a program loads. Each stage adds one thing and does not depend on the stages after it:
//
//   ZipEntry "data.pkl"          zip/zip_directory.h    parse: names, sizes and offsets that agree with each other
//         v
//   PickleValue                  pickle/pickle.h        trust: only listed globals; calls are recorded, none is made
//         v
//   TorchTensor                  state/torch_tensor.h   meaning of a call: a strided view inside one storage, kept
//                                                       packed by torch_tensors.h while the pickle is still parsed
//         v
//   TorchNode in a TorchTree     state/torch_tree.h     structure: branches; tensors by index; plain values as JSON
//         v
//   StateKey -> ShardedTensor,   state/torch_state.h    meaning of a name: model, optimizer state of a parameter, extra
//   StateKey -> TorchLeaf                               value; dtype and whole shape; source of the elements
//         |
//         |  TorchTensorPart::tensor -> TorchTensor::storage.key
//         v
//   StoragePlace                 pt/torch_file.h        place: the byte range of the entry "data/KEY" in the file
//
// In a DCP directory .metadata replaces data.pkl, and DcpTensor (dcp/dcp_metadata.h) replaces TorchTensor: its chunks
// are small archives, each with one tensor, and the later stages are the same.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_TREE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_TREE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tensors.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

// The properties of a tensor that decide its part in a state dict; the stages after the tree need no other ones.
struct TorchLeafType {
  DType dtype = DType::kFloat32;
  Shape shape;
  int identity = -1;  // equal for two names of one tensor (tied weights); -1: the tensor has one name
  TorchWrapper wrapper = {};
};

// The types of the tensors of a tree, by TorchNode::tensor(): from a vector, which must outlive this, or computed on
// each access, because a vector of a million takes 64 MB.
class TorchLeafTypes {
 public:
  TorchLeafTypes(const std::vector<TorchLeafType>& types)  // NOLINT: implicit, a vector of types is one
      : size_(static_cast<int64_t>(types.size())), at_([&types](int i) { return types[i]; }) {}
  TorchLeafTypes(int64_t size, std::function<TorchLeafType(int)> at) : size_(size), at_(std::move(at)) {}

  int64_t size() const { return size_; }
  TorchLeafType operator[](int i) const { return at_(i); }

 private:
  int64_t size_;
  std::function<TorchLeafType(int)> at_;
};

// Reads elements `interval` of tensor `tensor` of the tree to `out`, row-major, in the tensor's dtype.
using TorchTensorReader = std::function<absl::Status(int tensor, const Interval& interval, std::byte* out)>;

// Elements `interval` of tensor `tensor`, which has the dtype `dtype`, as bytes. For the few tensors whose elements
// decide the meaning of a state dict: hyperparameters in param_groups, slices of use_orig_params.
absl::StatusOr<std::string> ReadBytes(const TorchTensorReader& read, int tensor, DType dtype, const Interval& interval);

// Elements of tensor `tensor` of the tree, from element `offset` on: nonzero for a parameter inside a flat parameter of
// FSDP1.
struct TorchTensorPart {
  int tensor = 0;
  int64_t offset = 0;
};

// A number that the format keeps besides its tensors, such as Megatron-Core's step: as a scalar tensor, whose bytes are
// the first of these.
struct TorchNumber {
  std::array<std::byte, 8> bytes = {};
};

// The source of the elements of a tensor in the state.
struct TorchLeaf {
  std::variant<TorchTensorPart, TorchNumber> source;

  // Null for a number.
  const TorchTensorPart* tensor_part() const { return std::get_if<TorchTensorPart>(&source); }
};

// A dict or list, a tensor, or a value without a tensor in it. Owns its members. Copies are deep.
class TorchNode {
 public:
  enum class Kind : uint8_t { kBranch, kTensor, kValue };

  using Member = std::pair<std::string, TorchNode>;

  // A branch: a dict, or a list whose names are "0", "1", ...
  TorchNode();
  TorchNode(const TorchNode& other);
  TorchNode(TorchNode&&) noexcept;
  TorchNode& operator=(TorchNode other) noexcept;
  ~TorchNode();
  static TorchNode Tensor(int index);
  static TorchNode Value(PythonJson value);

  Kind kind() const { return kind_; }
  bool is_branch() const { return kind_ == Kind::kBranch; }
  int tensor() const { return tensor_; }  // kTensor: the index of the tensor in the tree
  const PythonJson& value() const;        // kValue; null for other kinds
  // Bits, because a state dict has a node for each tensor.
  bool is_list : 1 = false;        // kBranch: a list or tuple
  bool is_tuple : 1 = false;       // of a list
  bool is_ordered : 1 = false;     // of a dict: an OrderedDict
  bool is_counter : 1 = false;     // of a dict: a Counter
  bool has_json_name : 1 = false;  // a member of a dict: its name is the JSON of its key, such as an integer
  // Takes over the five above, for a copy of `other` with other members.
  void TakeForm(const TorchNode& other);
  // In the order of the file; empty unless this is a branch.
  const std::vector<Member>& members() const;

  // Calls `use` for each member in turn and frees it afterwards: for a tree that is too large to be in memory together
  // with its results. Stops at the first error. The node has no members from the start of the call on.
  absl::Status Consume(const std::function<absl::Status(const std::string& name, TorchNode& member)>& use);

  // The member `name`, or null. Constant time. Pointers are valid until the next Add.
  const TorchNode* Find(const std::string& name) const;
  TorchNode* Find(const std::string& name);

  // Returns the new member, or null when the name is taken. Constant time.
  TorchNode* Add(const std::string& name, TorchNode node);
  // Makes room for `count` members, so that adding them allocates no more than they need.
  void Reserve(int64_t count);

  // The form of a branch in JSON (python_json.h): an object, if this is a plain dict whose keys are texts; otherwise a
  // list of elements or pairs, in an object with this tag. Null: without a tag.
  bool IsPlainDict() const;
  const char* Tag() const;

  // The node as one value; kInvalidArgument when it holds a tensor.
  absl::StatusOr<PythonJson> ToJson() const;

  // The node as one value, with its tensors in JsonOfTensor's form. `tensors` and `read` take the index of a tensor.
  // kInvalidArgument for a tensor of more than kMaxLiteralBytes.
  absl::StatusOr<PythonJson> ToJson(const TorchLeafTypes& tensors, const TorchTensorReader& read) const;

 private:
  struct Branch;  // the members, and their index by name

  Kind kind_ = Kind::kBranch;
  int tensor_ = -1;
  // 24 bytes in all: a state dict has a node for each tensor. Null: no value, no members.
  std::unique_ptr<PythonJson> value_;
  std::unique_ptr<Branch> branch_;
};

// True for a tensor, and for a branch with one inside it.
bool HoldsTensor(const TorchNode& node);

// Deeper nesting is refused: reading recurses, and a hostile file must not choose the depth of the stack.
inline constexpr int kMaxTorchDepth = 48;

struct TorchTree {
  TorchNode root;
  TorchTensors tensors;  // by TorchNode::tensor()
};

// kInvalidArgument if a tensor of the tree is one rank's part of a DTensor, with its name and what must be in the
// same directory: such a part must not pass for the tensor. OK for DTensors that every rank has whole.
absl::Status CheckHoldsNoShards(const TorchTree& tree);

// Parses the pickle at the start of `bytes` as torch.save wrote it, and builds its tree: Pickle::Parse and
// TreeOfPickle, with the tensors taken while it is parsed. `bytes` is not needed afterwards. Errors as Pickle::Parse
// and TreeOfPickle.
absl::StatusOr<TorchTree> ParseTorchTree(std::string_view bytes);

// Builds the tree of the pickle's value. A value without a tensor in it becomes one kValue node, however large. Errors
// as ReadTorchTensor and JsonOfPickle; kDataLoss also for a name that a dict has twice; kResourceExhausted for nesting
// beyond kMaxTorchDepth, and for a tree that, with its results, takes more memory than PickleMemoryLimit allows.
// `taken`: the PickleObjects of the pickle; null if it was parsed without them.
absl::StatusOr<TorchTree> TreeOfPickle(const Pickle& pickle, TorchTensorTaker* taken = nullptr);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_TREE_H_
