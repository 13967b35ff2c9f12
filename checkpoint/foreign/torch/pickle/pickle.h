// SPDX-License-Identifier: Apache-2.0
//
// Pickle: the contents of a pickle as a graph of values; nothing is imported, called or executed. A global is a name; a
// call (REDUCE, NEWOBJ) is a record of the callee and its arguments, for the reader of a format to interpret. The
// caller lists the permitted names; any other is refused by name. Pure: bytes in, values out.
//
// torch._utils._rebuild_tensor_v2(("storage", ...), 0, (2, 3), (3, 1)) becomes
//
//   kCall  callee():    kGlobal name() "torch._utils._rebuild_tensor_v2"
//          arguments(): kTuple  at(0) kPersistent, at(1) kInt 0, at(2) kTuple (2, 3), at(3) kTuple (3, 1)
//
//   FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Pickle> pickle, Pickle::Parse(bytes, {.is_allowed = IsTorchGlobal}));
//   const auto [name, value] = pickle->root().member(0);
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

// The maximum memory for reading a pickle of `nbytes` bytes, whatever it contains: the bytes themselves, the values,
// the structures that are built from them while it is parsed and its tree is built, and the results of a command that
// reads the checkpoint (pickle_budget.h).
inline constexpr int64_t kPickleAllowance = int64_t{64} << 20;
inline constexpr int64_t PickleMemoryLimit(int64_t nbytes) { return 2 * nbytes + kPickleAllowance; }

// Bounds on the cost of one pickle, whatever it contains; kResourceExhausted beyond them. The defaults are far above
// the state dict of any real model.
struct PickleLimits {
  // Bytes that are read; a longer pickle counts as truncated.
  int64_t max_bytes = int64_t{1} << 30;
  // Bytes of values, memo and stack together. Default: PickleMemoryLimit less the bytes of the input.
  std::optional<int64_t> max_memory = {};
  // Bytes of one string: names and texts, never the elements of tensors.
  int64_t max_string_bytes = int64_t{64} << 20;
  // Marks that are open at the same time, that is, how deep containers nest while they are built.
  int max_depth = 1000;
};

class PickleValue;

// Takes objects out of a pickle while it is parsed. A state dict has a call for each tensor, whose arguments take as
// many bytes as values as they have in the pickle. The reader stores a taken object in its own form, and the values are
// dropped.
class PickleObjects {
 public:
  // An upper bound on the numbers of objects.
  static constexpr uint32_t kMaxObjects = (uint32_t{1} << 30) - 1;

  virtual ~PickleObjects() = default;

  // The number of the object that `call` creates; nullopt leaves the call as it is. `call` is valid until the function
  // returns.
  virtual std::optional<uint32_t> Take(PickleValue call) = 0;

  // The same for a call whose state is set (BUILD).
  virtual std::optional<uint32_t> TakeBuilt(PickleValue call, PickleValue state);

  // PickleValue::place of an object.
  virtual int64_t place(uint32_t object) const = 0;

  // Bytes of memory that the objects take, which count as values. Called often.
  virtual int64_t memory() const = 0;
};

struct PickleOptions {
  // True for the globals that may be named: "torch._utils._rebuild_tensor_v2". All others are refused; null refuses
  // all.
  bool (*is_allowed)(std::string_view name) = nullptr;
  // True for further globals that may be named, of objects that are not read: a call of one is recorded with its
  // arguments, but without its state and the items that are added to it. Null: for none.
  bool (*is_inert)(std::string_view name) = nullptr;
  // For the message about a refused global: how to save that object in a supported form. May be null or return "".
  std::string_view (*advice)(std::string_view name) = nullptr;
  // Called for each call whose parts have no other reference; must outlive the pickle. Null: every call stays a value.
  PickleObjects* objects = nullptr;
  PickleLimits limits = {};
};

// The Python types that a value can have. The last four represent operations that are not carried out.
enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,  // beyond int64: text() is its little-endian two's complement
  kFloat,
  kString,
  kBytes,
  kByteArray,  // of protocol 5; earlier ones write a call
  kTuple,
  kList,
  kSet,
  kFrozenSet,
  kDict,        // of the type dict_type()
  kGlobal,      // a name that Python would import: name() is "module.name"
  kCall,        // a global called with arguments: callee(), arguments(); state() if BUILD set one
  kPersistent,  // an object outside the pickle: at(0) is its id
  kObject,      // taken by PickleObjects: object() is its number
};

// The types of a dict, which PyTorch distinguishes: a scheduler calls Counter.elements() of its milestones.
enum class PickleDict : uint8_t { kPlain, kOrdered, kCounter };

// "a dict", "an int", ...: with its article, for messages.
std::string_view PickleKindName(PickleKind kind);

class Pickle;

// One value: a reference into a Pickle, which must outlive it; cheap to copy. Values form a graph: one value can be an
// element of many, and can contain itself, so code that walks them must bound its depth and its steps. All accessors
// take constant time, except that name() concatenates, and decimal numbers and names of globals take time linear in
// their line.
class PickleValue {
 public:
  PickleKind kind() const;

  // The offset in the pickle of the opcode that created the value: for messages.
  int64_t place() const;

  // The contents of a value of the kind in the function's name; CHECK-fails for another kind.
  bool boolean() const;
  int64_t integer() const;
  double real() const;
  // kString, kBytes, kByteArray, kBigInt. Valid as long as the pickled bytes. A kString is UTF-8, perhaps with
  // surrogates, if Python wrote it: not checked.
  std::string_view text() const;
  // kGlobal: "module.name", and its two parts, which are valid as long as the pickled bytes.
  std::string name() const;
  std::string_view global_module() const;
  std::string_view global_name() const;
  // The elements of a tuple, list, set or frozenset; the members of a dict.
  int64_t size() const;
  // Element `i`, below size(), of a tuple, list, set or frozenset; at(0) of a persistent id is the id.
  PickleValue at(int64_t i) const;
  // Key and value `i`, below size(), of a dict, in the order of insertion. A key can occur twice.
  std::pair<PickleValue, PickleValue> member(int64_t i) const;
  PickleDict dict_type() const;  // kDict
  // The parts of a call. Precondition of state(): has_state().
  PickleValue callee() const;
  PickleValue arguments() const;
  bool has_state() const;
  PickleValue state() const;
  // The number that PickleObjects::Take returned for a kObject.
  uint32_t object() const;

  // Every other accessor needs the right kind, so readers test it first: a file's author chooses the kinds.
  bool is(PickleKind wanted) const { return kind() == wanted; }
  bool is_sequence() const { return is(PickleKind::kTuple) || is(PickleKind::kList); }

  // True for the global `wanted`, and for a call of the global `wanted`; false for values of any other kind.
  bool is_global(std::string_view wanted) const;
  bool is_call(std::string_view wanted) const;

  // True for the string `wanted`; false for values of any other kind.
  bool is_string(std::string_view wanted) const;

  // Equal for references to one value: for memoizing a walk.
  uint32_t id() const { return id_; }
  // True for a value that has no parts and is not counted in Pickle::node_count(): a leaf of the pickle, or an object.
  bool is_leaf() const;

 private:
  friend class Pickle;
  friend class PickleBuilder;
  PickleValue(const Pickle* pickle, uint32_t id) : pickle_(pickle), id_(id) {}

  // Module and name of a global; nullopt for values of any other kind.
  std::optional<std::pair<std::string_view, std::string_view>> FindGlobal() const;

  const Pickle* pickle_;
  uint32_t id_;
};

// A parsed pickle; owns its values. Immutable, so any number of threads may read it.
class Pickle {
 public:
  // Reads the pickle at the start of `bytes`, up to its STOP; the bytes after it are ignored. Strings are views of
  // `bytes`, which must outlive the result. kDataLoss for bytes that are not a pickle; kInvalidArgument names the
  // global or opcode that is refused; kResourceExhausted names the limit that is exceeded. Messages begin with the byte
  // offset. Time is linear in the bytes and values.
  static absl::StatusOr<std::unique_ptr<Pickle>> Parse(std::string_view bytes, const PickleOptions& options);

  PickleValue root() const { return {this, root_}; }

  // Bytes of the pickle, including STOP: the offset of the next one in files that hold several.
  int64_t size() const { return size_; }

  // Bytes that were passed to Parse, which must stay: the pickle and any bytes after it.
  int64_t input_bytes() const { return static_cast<int64_t>(bytes_.size()); }

  // Bytes of memory that the values take, without the pickled bytes.
  int64_t memory() const { return memory_; }

  // All persistent ids, in the order of the pickle, with repetitions: the storages that it refers to.
  int64_t persistent_count() const { return static_cast<int64_t>(persistent_.size()); }
  PickleValue persistent(int64_t i) const { return {this, persistent_[i]}; }

  // The number of values that are not leaves, and the index of `value`, which has parts, among them: for tables by
  // value.
  int64_t node_count() const { return static_cast<int64_t>(nodes_.size()); }
  static int64_t NodeIndex(PickleValue value) { return static_cast<int64_t>(value.id_) - kFirstNode; }

 private:
  friend class PickleValue;
  friend class PickleBuilder;

  // A value by its id. Below kFirstNode the id is the offset of the opcode that created it, a leaf (pickle_leaf.h), for
  // which nothing is stored. From kFirstObject on it is the number of an object, for which nothing is stored here
  // either. All others are nodes: values with parts, and copies of a text.
  static constexpr uint32_t kFirstNode = uint32_t{1} << 31;
  static constexpr uint32_t kFirstObject = uint32_t{3} << 30;

  // 16 bytes, because a state dict has millions of them. The last two counters stop at 255, which then means 255 or
  // more.
  struct Node {
    uint32_t place = 0;  // of its opcode
    uint32_t begin = 0;  // of its items, in items_
    uint32_t size = 0;   // number of items
    PickleKind kind = PickleKind::kNone;
    uint8_t room : 5 = 0;  // 2^room items fit at `begin`; 0: exactly `size`
    uint8_t dict : 3 = 0;  // PickleDict
    uint8_t uses = 0;  // times that it was pushed or copied, an upper bound on the references to it, without the memo's
    uint8_t numbers = 0;  // times that it was put into the memo under a number that is read again
  };

  Pickle(std::string_view bytes, const PickleObjects* objects) : bytes_(bytes), objects_(objects) {}

  static bool is_leaf(uint32_t id) { return id < kFirstNode; }
  static bool is_object(uint32_t id) { return id >= kFirstObject; }
  static bool is_node(uint32_t id) { return !is_leaf(id) && !is_object(id); }
  const Node& node(uint32_t id) const { return nodes_[id - kFirstNode]; }
  PickleKind KindOf(uint32_t id) const;

  std::string_view bytes_;  // the input, not owned
  const PickleObjects* objects_;
  // Deques, because a growing vector would hold up to three times the memory that max_memory counts.
  std::deque<Node> nodes_;
  // Ids, by Node::begin. Tuples, lists, sets: elements. Dicts: key, value, key, value. Globals: module, name. Calls:
  // callee, arguments, and the state if there is one. Persistent ids: the id. Bytes: the text that they are a copy of,
  // if they are not empty.
  std::deque<uint32_t> items_;
  // Ids of all kPersistent values, in the order of their creation.
  std::deque<uint32_t> persistent_;
  int64_t memory_ = 0;
  uint32_t root_ = 0;
  int64_t size_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_H_
