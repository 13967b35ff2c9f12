// SPDX-License-Identifier: Apache-2.0
//
// The interpreter behind Pickle::Parse: Python's pickle machine without any effect. A pickle is a program of one-byte
// opcodes; Python runs it with the power to import and call anything. Here it can only create values:
//
//   stack_    ids of values; an opcode pops its operands and pushes its result. A leaf's id is the offset of its opcode
//   marks_    sizes of the stack: MARK opens a group, TUPLE, APPENDS, SETITEMS, ... close it; values below the last
//              mark cannot be popped
//   memo_     values by number, for GET: one value can have many references, and can contain itself
//   values_   every value with parts; none is freed before the Pickle, except the parts of taken objects
//
// The opcodes with power in Python, and their effect here:
//
//   GLOBAL, STACK_GLOBAL   import: a name, refused immediately unless PickleOptions::is_allowed or is_inert lists it
//   REDUCE, NEWOBJ         call: the callee must be such a name. Calls of Python's own containers (OrderedDict, set,
//                          bytearray, ...) create that container; every other call is recorded as a kCall
//   BUILD                  __setstate__: recorded with its kCall, once; dropped for a call of an inert global
//   BINPERSID              lookup by the program that unpickles: recorded as a kPersistent
//   the rest               (INST, OBJ, EXT1, PERSID, NEWOBJ_EX, NEXT_BUFFER, ...) refused: state dicts do not need them
//
// The cost of a hostile pickle. Time is linear in its bytes and in the memory of its values, because each opcode reads
// only its own bytes and touches its own operands. PickleLimits bound both: bytes when parsing starts, memory before
// each opcode that copies more than a few ids (Reserve), and after all others. Nothing recurses, so nesting takes heap
// and not stack. A call is taken as an object (PickleObjects) only if no later opcode can refer to its parts, which
// PickleReferences knows from a first pass. A small pickle can still describe an endless or exponential tree through
// references to one value: code that walks values bounds its own depth, steps and memory (torch_tree.cc,
// python_json.cc).
#include <algorithm>
#include <deque>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_builder.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_gate.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_input.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_leaf.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_memo.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_opcode.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_references.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

class PickleMachine {
 public:
  PickleMachine(PickleInput& input, PickleBuilder& values, const PickleReferences& references,
                const PickleOptions& options)
      : input_(input),
        values_(values),
        options_(options),
        gate_(options),
        max_memory_(*options.limits.max_memory),
        memo_(references) {}

  // Runs until STOP; returns the value on top of the stack.
  absl::StatusOr<uint32_t> Run() {
    while (true) {
      FSDP_ASSIGN_OR_RETURN(const uint8_t code, input_.TakeOpcode());
      if (static_cast<PickleOpcode>(code) == PickleOpcode::kStop) return Pop();
      FSDP_RETURN_IF_ERROR(Step(static_cast<PickleOpcode>(code)));
      FSDP_RETURN_IF_ERROR(Reserve(0));
    }
  }

 private:
  // OK when `nbytes` more may be allocated.
  absl::Status Reserve(int64_t nbytes) const {
    const int64_t stack = PickleBuilder::MemoryOf(static_cast<int64_t>(stack_.size()));
    const int64_t objects = options_.objects == nullptr ? 0 : options_.objects->memory();
    if (values_.memory() + memo_.memory() + stack + objects + nbytes <= max_memory_) return absl::OkStatus();
    return input_.Exceeded(absl::StrCat("its values take more than ", max_memory_, " bytes, which is what a pickle of ",
                                        input_.bytes().size(), " bytes may take"));
  }

  // ---- the stack

  absl::Status Push(uint32_t id) {
    stack_.push_back(id);
    values_.CountUse(id);
    return absl::OkStatus();
  }

  // Pops only values above the last mark, so that no opcode reaches into a group that another one opened.
  absl::StatusOr<uint32_t> Pop() {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) return input_.Broken("a value is taken from an empty stack");
    const uint32_t id = stack_.back();
    stack_.pop_back();
    return id;
  }

  absl::StatusOr<uint32_t> Top() {
    FSDP_ASSIGN_OR_RETURN(const uint32_t id, Pop());
    stack_.push_back(id);
    return id;
  }

  // The index in the stack of the first value above the last mark. Closes the mark; the caller drops the group.
  absl::StatusOr<size_t> TakeMark() {
    if (marks_.empty()) return input_.Broken("there is no open mark");
    const size_t first = marks_.back();
    marks_.pop_back();
    return first;
  }

  // The index of the first of the last `count` values of the stack; all of them must be above the last mark.
  absl::StatusOr<size_t> LastValues(size_t count) const {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < floor + count) return input_.Broken("a value is taken from an empty stack");
    return stack_.size() - count;
  }

  // ---- the memo

  absl::Status Put(uint64_t index) {
    FSDP_ASSIGN_OR_RETURN(const uint32_t id, Top());
    FSDP_RETURN_IF_ERROR(Reserve(memo_.growth()));
    if (memo_.Put(index, id)) values_.CountNumber(id);
    return absl::OkStatus();
  }

  absl::Status Get(uint64_t index) {
    const std::optional<uint32_t> id = memo_.Find(index);
    if (!id) return input_.Broken(absl::StrCat("memo entry ", index, " is read before it is written"));
    return Push(*id);
  }

  // ---- opcodes

  // A leaf's id is the offset of its opcode. It is decoded once now, so that decoding it later cannot fail.
  absl::Status PushLeaf(PickleOpcode opcode) {
    FSDP_ASSIGN_OR_RETURN(const PickleLeaf leaf, TakeLeaf(opcode, input_));
    if (static_cast<int64_t>(leaf.text.size()) > options_.limits.max_string_bytes) {
      return input_.Exceeded(
          absl::StrCat("a string of ", leaf.text.size(), " bytes, more than ", options_.limits.max_string_bytes));
    }
    if (leaf.kind == Kind::kGlobal) FSDP_RETURN_IF_ERROR(gate_.Check(leaf.module, leaf.text, input_));
    return Push(static_cast<uint32_t>(input_.opcode_at()));
  }

  absl::Status PushGlobalOfStack() {
    FSDP_ASSIGN_OR_RETURN(const uint32_t name, Pop());
    FSDP_ASSIGN_OR_RETURN(const uint32_t module, Pop());
    if (values_.KindOf(module) != Kind::kString || values_.KindOf(name) != Kind::kString) {
      return input_.Broken("STACK_GLOBAL without two strings");
    }
    // Checked before the two are joined: each may be as long as the limit for strings.
    constexpr size_t kMaxName = 4096;
    const std::string_view texts[] = {values_.Value(module).text(), values_.Value(name).text()};
    if (texts[0].size() + texts[1].size() > kMaxName) return input_.Broken("the name of a global is too long");
    FSDP_RETURN_IF_ERROR(gate_.Check(texts[0], texts[1], input_));
    return Push(values_.Items(Kind::kGlobal, {module, name}));
  }

  // callee(*arguments). Refuses a callee that is itself the result of a call: no list of names can describe its effect.
  absl::Status Reduce() {
    FSDP_ASSIGN_OR_RETURN(const uint32_t arguments, Pop());
    FSDP_ASSIGN_OR_RETURN(const uint32_t callee, Pop());
    if (values_.KindOf(callee) != Kind::kGlobal) {
      return input_.Refused(absl::StrCat("it wants to call ", std::string(PickleKindName(values_.KindOf(callee))),
                                         " that is not a global: refused, and nothing was executed"));
    }
    if (values_.KindOf(arguments) != Kind::kTuple) return input_.Broken("a call whose arguments are not a tuple");
    return PushCall(callee, arguments);
  }

  absl::Status NewObject() {
    FSDP_ASSIGN_OR_RETURN(const uint32_t arguments, Pop());
    FSDP_ASSIGN_OR_RETURN(const uint32_t callee, Pop());
    if (values_.KindOf(callee) != Kind::kGlobal || values_.KindOf(arguments) != Kind::kTuple) {
      return input_.Broken("NEWOBJ without a class and a tuple");
    }
    return PushCall(callee, arguments);
  }

  absl::Status PushCall(uint32_t callee, uint32_t arguments) {
    FSDP_RETURN_IF_ERROR(Reserve(PickleBuilder::MemoryOf(values_.CopiedItems(arguments))));
    FSDP_ASSIGN_OR_RETURN(const std::optional<uint32_t> container, values_.Container(callee, arguments));
    return Push(container ? *container : Taken(values_.Items(Kind::kCall, {callee, arguments})));
  }

  // `call`, or the object that replaces it if PickleOptions::objects takes it and its parts are no longer needed.
  uint32_t Taken(uint32_t call) {
    if (options_.objects == nullptr) return call;
    const std::optional<PickleBuilder::Tail> tail = values_.TailOf(call);
    if (!tail) return call;
    return Replaced(*tail, options_.objects->Take(values_.Value(call))).value_or(call);
  }

  std::optional<uint32_t> TakenBuilt(uint32_t call, uint32_t state) {
    if (options_.objects == nullptr) return std::nullopt;
    const std::optional<PickleBuilder::Tail> tail = values_.TailOf(call, state);
    if (!tail) return std::nullopt;
    return Replaced(*tail, options_.objects->TakeBuilt(values_.Value(call), values_.Value(state)));
  }

  std::optional<uint32_t> Replaced(const PickleBuilder::Tail& tail, std::optional<uint32_t> object) {
    if (!object || *object >= PickleObjects::kMaxObjects) return std::nullopt;
    return values_.Replace(tail, *object);
  }

  // object.__setstate__(state). The state of an OrderedDict is dropped: it is the _metadata (versions of modules) that
  // Module.state_dict() adds. Other containers have no state; the state of an object that was already taken comes too
  // late.
  absl::Status Build() {
    FSDP_ASSIGN_OR_RETURN(const uint32_t state, Pop());
    FSDP_ASSIGN_OR_RETURN(const uint32_t object, Top());
    if (values_.KindOf(object) == Kind::kDict || values_.KindOf(object) == Kind::kObject) return absl::OkStatus();
    if (gate_.IsInert(values_, object)) return absl::OkStatus();
    if (values_.KindOf(object) != Kind::kCall) {
      return input_.Refused(
          absl::StrCat("it wants to set the state of ", std::string(PickleKindName(values_.KindOf(object)))));
    }
    if (values_.SizeOf(object) > 2) return input_.Broken("an object whose state is set twice");
    if (const std::optional<uint32_t> taken = TakenBuilt(object, state)) {
      stack_.back() = *taken;
      return absl::OkStatus();
    }
    values_.Append(object, state);
    return absl::OkStatus();
  }

  absl::Status Persist() {
    FSDP_ASSIGN_OR_RETURN(const uint32_t name, Pop());
    return Push(values_.Persistent(name));
  }

  // Replaces the group that begins at `first` with a tuple or a set of its values.
  absl::Status PushGroup(Kind kind, absl::StatusOr<size_t> first) {
    FSDP_RETURN_IF_ERROR(first.status());
    FSDP_RETURN_IF_ERROR(Reserve(PickleBuilder::MemoryOf(static_cast<int64_t>(stack_.size() - *first))));
    const uint32_t group = values_.Items(kind, stack_, *first);
    Drop(*first);
    return Push(group);
  }

  // Adds the group that begins at `first` to the container below it. An item may be the container itself: the graph may
  // have cycles.
  absl::Status AppendGroup(Kind kind, absl::StatusOr<size_t> first) {
    FSDP_RETURN_IF_ERROR(first.status());
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (*first <= floor) return input_.Broken("a value is taken from an empty stack");
    const uint32_t container = stack_[*first - 1];
    if (gate_.IsInert(values_, container)) {  // of a subclass of a list or dict
      Drop(*first);
      return absl::OkStatus();
    }
    if (values_.KindOf(container) != kind) {
      return input_.Broken(absl::StrCat("values for ", std::string(PickleKindName(kind)), " are put into ",
                                        std::string(PickleKindName(values_.KindOf(container)))));
    }
    const auto count = static_cast<int64_t>(stack_.size() - *first);
    if (kind == Kind::kDict && count % 2 != 0) return input_.Broken("a key without a value");
    FSDP_RETURN_IF_ERROR(Reserve(PickleBuilder::MemoryOf(2 * (values_.SizeOf(container) + count))));
    values_.Append(container, stack_, *first);
    Drop(*first);
    return absl::OkStatus();
  }

  void Drop(size_t first) { stack_.erase(stack_.begin() + static_cast<int64_t>(first), stack_.end()); }

  absl::Status Mark() {
    if (static_cast<int>(marks_.size()) >= options_.limits.max_depth) {
      return input_.Exceeded(
          absl::StrCat("more than ", options_.limits.max_depth, " values are open inside each other"));
    }
    marks_.push_back(stack_.size());
    return absl::OkStatus();
  }

  absl::Status CheckProtocol() {
    FSDP_ASSIGN_OR_RETURN(const uint8_t protocol, input_.TakeByte());
    if (protocol <= 5) return absl::OkStatus();
    return input_.Refused(absl::StrCat("pickle protocol ", int{protocol}, ", expected at most 5"));
  }

  template <typename Read>
  absl::Status WithIndex(int nbytes, Read read) {
    FSDP_ASSIGN_OR_RETURN(const uint64_t index, input_.TakeUnsigned(nbytes));
    return read(index);
  }

  absl::Status Step(PickleOpcode opcode);

  PickleInput& input_;
  PickleBuilder& values_;
  const PickleOptions& options_;
  const PickleGate gate_;
  const int64_t max_memory_;
  PickleBuilder::Ids stack_;
  std::vector<size_t> marks_;  // sizes of stack_
  PickleMemo memo_;
};

absl::Status PickleMachine::Step(PickleOpcode opcode) {
  using Op = PickleOpcode;
  const auto put = [this](uint64_t index) { return Put(index); };
  const auto get = [this](uint64_t index) { return Get(index); };
  switch (opcode) {
    case Op::kProto:
      return CheckProtocol();
    case Op::kFrame:
      return input_.SkipFrame();
    case Op::kMark:
      return Mark();
    case Op::kPop:
      if (!marks_.empty() && marks_.back() == stack_.size()) return TakeMark().status();
      return Pop().status();
    case Op::kPopMark: {
      FSDP_ASSIGN_OR_RETURN(const size_t first, TakeMark());
      Drop(first);
      return absl::OkStatus();
    }
    case Op::kTuple1:
      return PushGroup(Kind::kTuple, LastValues(1));
    case Op::kTuple2:
      return PushGroup(Kind::kTuple, LastValues(2));
    case Op::kTuple3:
      return PushGroup(Kind::kTuple, LastValues(3));
    case Op::kTuple:
      return PushGroup(Kind::kTuple, TakeMark());
    case Op::kFrozenSet:
      return PushGroup(Kind::kFrozenSet, TakeMark());
    case Op::kEmptyList:
      return Push(values_.Items(Kind::kList, {}));
    case Op::kEmptyDict:
      return Push(values_.Items(Kind::kDict, {}));
    case Op::kEmptySet:
      return Push(values_.Items(Kind::kSet, {}));
    case Op::kAppend:
      return AppendGroup(Kind::kList, LastValues(1));
    case Op::kAppends:
      return AppendGroup(Kind::kList, TakeMark());
    case Op::kSetItem:
      return AppendGroup(Kind::kDict, LastValues(2));
    case Op::kSetItems:
      return AppendGroup(Kind::kDict, TakeMark());
    case Op::kAddItems:
      return AppendGroup(Kind::kSet, TakeMark());
    case Op::kBinPut:
      return WithIndex(1, put);
    case Op::kLongBinPut:
      return WithIndex(4, put);
    case Op::kMemoize:
      return Put(memo_.size());
    case Op::kBinGet:
      return WithIndex(1, get);
    case Op::kLongBinGet:
      return WithIndex(4, get);
    case Op::kStackGlobal:
      return PushGlobalOfStack();
    case Op::kReduce:
      return Reduce();
    case Op::kNewObj:
      return NewObject();
    case Op::kBuild:
      return Build();
    case Op::kBinPersId:
      return Persist();
    default:
      if (IsLeaf(opcode)) return PushLeaf(opcode);
      return input_.Refused(absl::StrFormat("opcode 0x%02x, which no state dict needs", static_cast<int>(opcode)));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pickle>> Pickle::Parse(std::string_view bytes, const PickleOptions& options) {
  const int64_t limit = std::min<int64_t>(options.limits.max_bytes, kFirstNode - 1);
  if (static_cast<int64_t>(bytes.size()) > limit) bytes = bytes.substr(0, limit);
  const auto nbytes = static_cast<int64_t>(bytes.size());
  PickleOptions filled = options;
  if (!filled.limits.max_memory) filled.limits.max_memory = PickleMemoryLimit(nbytes) - nbytes;
  const PickleReferences references = PickleReferences::Of(bytes);
  std::unique_ptr<Pickle> pickle(new Pickle(bytes, filled.objects));
  PickleInput input(bytes);
  PickleBuilder values(*pickle, input);
  FSDP_ASSIGN_OR_RETURN(pickle->root_, PickleMachine(input, values, references, filled).Run());
  pickle->size_ = static_cast<int64_t>(input.at());
  pickle->memory_ = values.memory();
  return pickle;
}

}  // namespace fsdp
