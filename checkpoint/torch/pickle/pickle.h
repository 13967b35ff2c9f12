// SPDX-License-Identifier: Apache-2.0
//
// Pickle: what a pickle says, as a tree of values, with nothing imported, called or executed. A global is a name; a
// call (REDUCE, NEWOBJ) is a record of what would be called with which arguments, for the reader of a format to
// interpret. Which names may occur is the caller's list; anything else is refused by name. Pure: bytes in, values out.
//
//   FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Pickle> pickle, Pickle::Parse(bytes, {.is_allowed = IsTorchGlobal}));
//   const auto [name, value] = pickle->root().member(0);
#ifndef FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_H_
#define FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

// Limits on what one pickle may take, whatever it says.
struct PickleLimits {
  int64_t max_bytes = int64_t{1} << 30;          // of pickle
  int64_t max_memory = int64_t{2} << 30;         // of values, memo and stack
  int64_t max_string_bytes = int64_t{64} << 20;  // of one string
  int max_depth = 1000;                          // of marks that are open at once
};

struct PickleOptions {
  // True for the globals that may be named: "torch._utils._rebuild_tensor_v2". All others are refused.
  bool (*is_allowed)(std::string_view name) = nullptr;
  // What to do about one that is refused, for the message; empty where there is nothing to say. May be null.
  std::string_view (*advice)(std::string_view name) = nullptr;
  PickleLimits limits = {};
};

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,  // beyond int64: text() is its little-endian two's complement
  kFloat,
  kString,
  kBytes,
  kTuple,
  kList,
  kSet,
  kDict,        // also OrderedDict, Counter and defaultdict
  kGlobal,      // something that is imported: name() is "module.name"
  kCall,        // a global called with arguments: callee(), arguments(); state() where BUILD set one
  kPersistent,  // what a file keeps beside the pickle: at(0) is its id
};

// "a dict", "a call", ...: for messages.
std::string_view PickleKindName(PickleKind kind);

class Pickle;

// One value; a reference into a Pickle, to be passed by value. Values may be shared, and may contain themselves: who
// walks them bounds depth and steps.
class PickleValue {
 public:
  PickleKind kind() const;

  // The byte of the pickle where it was made.
  int64_t place() const;

  // Of the kind that the name says; CHECK-fails for another.
  bool boolean() const;
  int64_t integer() const;
  double real() const;
  std::string_view text() const;    // kString, kBytes, kBigInt; lives as long as the pickled bytes
  std::string name() const;         // kGlobal
  int64_t size() const;             // of a tuple, list or set; of a dict, its members
  PickleValue at(int64_t i) const;  // of a tuple, list, set or persistent id
  std::pair<PickleValue, PickleValue> member(int64_t i) const;  // of a dict, in the order of insertion
  PickleValue callee() const;
  PickleValue arguments() const;
  bool has_state() const;
  PickleValue state() const;

  bool is(PickleKind wanted) const { return kind() == wanted; }
  bool is_sequence() const { return is(PickleKind::kTuple) || is(PickleKind::kList); }

  // True for the global or the call of the global `wanted`.
  bool is_global(std::string_view wanted) const;
  bool is_call(std::string_view wanted) const;

  // Two references to one value are one value.
  uint32_t id() const { return id_; }

 private:
  friend class Pickle;
  friend class PickleBuilder;
  PickleValue(const Pickle* pickle, uint32_t id) : pickle_(pickle), id_(id) {}

  const Pickle* pickle_;
  uint32_t id_;
};

class Pickle {
 public:
  // Reads the pickle that `bytes` begins with; what follows it is not looked at. `bytes` must outlive the result.
  // kDataLoss for what is no pickle; kInvalidArgument names the global or opcode that is refused; kResourceExhausted
  // the limit that is exceeded. Messages say at which byte.
  static absl::StatusOr<std::unique_ptr<Pickle>> Parse(std::string_view bytes, const PickleOptions& options);

  PickleValue root() const { return {this, root_}; }

  // Bytes of the pickle, STOP included.
  int64_t size() const { return size_; }

  // All persistent ids, in the order of the pickle.
  std::vector<PickleValue> persistent() const;

 private:
  friend class PickleValue;
  friend class PickleBuilder;

  struct Node {
    PickleKind kind = PickleKind::kNone;
    uint32_t place = 0;
    union {
      int64_t integer;
      double real;
      uint32_t items;  // index into items_
      struct {
        uint32_t offset;  // in bytes_
        uint32_t length;
      } text;
    };
    Node() : integer(0) {}
  };

  explicit Pickle(std::string_view bytes) : bytes_(bytes) {}

  const Node& node(uint32_t id) const { return nodes_[id]; }
  const std::vector<uint32_t>& items(uint32_t id) const { return items_[nodes_[id].items]; }

  std::string_view bytes_;
  std::deque<Node> nodes_;
  // Of tuples, lists, sets: elements. Of dicts: key, value, key, value. Of globals: module, name. Of calls: callee,
  // arguments, and state where there is one. Of persistent ids: the id.
  std::deque<std::vector<uint32_t>> items_;
  std::vector<uint32_t> persistent_;
  uint32_t root_ = 0;
  int64_t size_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_H_
