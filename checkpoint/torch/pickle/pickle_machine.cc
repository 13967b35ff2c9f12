// SPDX-License-Identifier: Apache-2.0
//
// The interpreter behind Pickle::Parse: Python's pickle machine with every effect taken out. A pickle is a program of
// one-byte opcodes; Python runs it with the power to import and call anything. Here it can only make values:
//
//   stack_    ids of values; an opcode pops its operands and pushes its result
//   marks_    sizes of the stack: MARK opens a group, TUPLE, APPENDS, SETITEMS, ... close it; what lies below the last
//             mark cannot be popped
//   memo_     values by number, for GET: one value can have many references, and can contain itself
//   values_   every value that was made; none is freed before the Pickle
//
// The opcodes with power in Python, and what remains of it:
//
//   GLOBAL, STACK_GLOBAL   import: a name, refused at once unless PickleOptions::is_allowed lists it
//   REDUCE, NEWOBJ         call: the callee must be such a name. Calls of Python's own containers (OrderedDict, set,
//                          bytearray, ...) make that container; every other call is recorded as a kCall
//   BUILD                  __setstate__: recorded with its kCall, once
//   BINPERSID              lookup by the program that unpickles: recorded as a kPersistent
//   the rest               (INST, OBJ, EXT1, PERSID, NEWOBJ_EX, NEXT_BUFFER, ...) refused: state dicts need none
//
// The cost of a hostile pickle. Time is linear in its bytes and in the memory of its values, for each opcode reads
// its own bytes and touches its own operands. PickleLimits bound both: bytes when parsing starts, memory after each
// opcode. One opcode can at most double the values, by copying a container, so the peak is twice the limit. Nothing
// recurses, so nesting takes heap and not stack. A small pickle can still describe an endless or exponential tree
// through references to one value: code that walks values bounds its own depth and steps (torch_tree.cc,
// python_json.cc).
#include <cstring>
#include <limits>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/torch/pickle/pickle.h"
#include "fsdp/checkpoint/torch/pickle/pickle_builder.h"
#include "fsdp/checkpoint/torch/pickle/pickle_input.h"
#include "fsdp/checkpoint/torch/pickle/pickle_opcode.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

class PickleMachine {
 public:
  PickleMachine(PickleInput& input, PickleBuilder& values, const PickleOptions& options)
      : input_(input), values_(values), options_(options) {}

  // Runs until STOP; the value that is on top then.
  absl::StatusOr<uint32_t> Run() {
    while (true) {
      FSDP_ASSIGN_OR_RETURN(const uint8_t code, input_.TakeOpcode());
      if (static_cast<PickleOpcode>(code) == PickleOpcode::kStop) return Pop();
      FSDP_RETURN_IF_ERROR(Step(static_cast<PickleOpcode>(code)));
      if (Memory() > options_.limits.max_memory) {
        return input_.Exceeded(absl::StrCat("its values take more than ", options_.limits.max_memory, " bytes"));
      }
    }
  }

 private:
  // The number that PickleLimits::max_memory bounds. An estimate from sizes: allocators add a constant factor.
  int64_t Memory() const {
    return static_cast<int64_t>(values_.memory() + memo_.size() * 16 + stack_.size() * sizeof(uint32_t));
  }

  // ---- the stack

  absl::Status Push(uint32_t id) {
    stack_.push_back(id);
    return absl::OkStatus();
  }

  // Takes values above the last mark only, so that no opcode reaches into a group that another one opened.
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

  // The group above the last mark, which is closed.
  absl::StatusOr<std::vector<uint32_t>> PopToMark() {
    if (marks_.empty()) return input_.Broken("there is no mark to go back to");
    std::vector<uint32_t> items(stack_.begin() + static_cast<int64_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  absl::StatusOr<std::vector<uint32_t>> PopSome(int count) {
    std::vector<uint32_t> items(count);
    for (int i = count; i-- > 0;) {
      FSDP_ASSIGN_OR_RETURN(items[i], Pop());
    }
    return items;
  }

  // ---- the memo

  // Indices are the pickle's choice, hence a map and not an array that index 2^32 - 1 would fill.
  absl::Status Put(uint64_t index) {
    FSDP_ASSIGN_OR_RETURN(memo_[index], Top());
    return absl::OkStatus();
  }

  absl::Status Get(uint64_t index) {
    const auto at = memo_.find(index);
    if (at == memo_.end()) return input_.Broken(absl::StrCat("memo entry ", index, " is read before it is written"));
    return Push(at->second);
  }

  // ---- opcodes

  absl::Status PushInteger(int64_t value) { return Push(values_.Integer(value)); }

  absl::Status PushBool(bool value) { return Push(values_.Bool(value)); }

  absl::Status PushFloat(double value) { return Push(values_.Float(value)); }

  // The length is checked before the bytes are taken, so a wrong one is reported as a limit and not as truncation.
  absl::Status PushText(Kind kind, int length_bytes) {
    FSDP_ASSIGN_OR_RETURN(const uint64_t length, input_.TakeUnsigned(length_bytes));
    if (length > static_cast<uint64_t>(options_.limits.max_string_bytes)) {
      return input_.Exceeded(
          absl::StrCat("a string of ", length, " bytes, more than ", options_.limits.max_string_bytes));
    }
    FSDP_ASSIGN_OR_RETURN(const std::string_view text, input_.Take(length));
    return Push(values_.Text(kind, text));
  }

  // LONG1, LONG4: two's complement of any length.
  absl::Status PushLong(int length_bytes) {
    FSDP_ASSIGN_OR_RETURN(const uint64_t length, input_.TakeUnsigned(length_bytes));
    FSDP_ASSIGN_OR_RETURN(const std::string_view bytes, input_.Take(length));
    if (length > sizeof(int64_t)) return Push(values_.Text(Kind::kBigInt, bytes));
    uint64_t value = length > 0 && (bytes.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = length; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
    return PushInteger(static_cast<int64_t>(value));
  }

  // INT and LONG, in decimal; "00" and "01" are bools.
  absl::Status PushDecimal(std::string_view line, bool may_be_bool) {
    if (may_be_bool && (line == "00" || line == "01")) return PushBool(line == "01");
    if (!line.empty() && line.back() == 'L') line.remove_suffix(1);
    int64_t value = 0;
    if (!absl::SimpleAtoi(absl::string_view(line.data(), line.size()), &value)) {
      return input_.Broken(absl::StrCat(Quote(line), " is no integer of 64 bits"));
    }
    return PushInteger(value);
  }

  absl::Status PushDecimalFloat() {
    FSDP_ASSIGN_OR_RETURN(const std::string_view line, input_.TakeLine());
    double value = 0;
    if (!absl::SimpleAtod(absl::string_view(line.data(), line.size()), &value)) {
      return input_.Broken(absl::StrCat(Quote(line), " is no number"));
    }
    return PushFloat(value);
  }

  absl::Status PushBigEndianFloat() {
    FSDP_ASSIGN_OR_RETURN(const std::string_view bytes, input_.Take(8));
    uint64_t bits = 0;
    for (const char byte : bytes) bits = bits << 8 | static_cast<uint8_t>(byte);
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return PushFloat(value);
  }

  // The one gate: every name passes here, from either opcode, before a value that refers to it is on the stack.
  absl::Status PushGlobal(uint32_t module, uint32_t name) {
    const uint32_t id = values_.Items(Kind::kGlobal, {module, name});
    const std::string full_name = values_.Value(id).name();
    if (options_.is_allowed == nullptr || !options_.is_allowed(full_name)) {
      const std::string advice(options_.advice == nullptr ? "" : options_.advice(full_name));
      return input_.Refused(absl::StrCat("it wants ", Quote(full_name),
                                         ", which no state dict needs: refused, and nothing was executed",
                                         advice.empty() ? "" : "; ", advice));
    }
    return Push(id);
  }

  absl::Status PushGlobalOfLines() {
    FSDP_ASSIGN_OR_RETURN(const std::string_view module, input_.TakeLine());
    FSDP_ASSIGN_OR_RETURN(const std::string_view name, input_.TakeLine());
    const uint32_t module_id = values_.Text(Kind::kString, module);
    return PushGlobal(module_id, values_.Text(Kind::kString, name));
  }

  absl::Status PushGlobalOfStack() {
    FSDP_ASSIGN_OR_RETURN(const std::vector<uint32_t> names, PopSome(2));
    if (values_.KindOf(names[0]) != Kind::kString || values_.KindOf(names[1]) != Kind::kString) {
      return input_.Broken("STACK_GLOBAL without two strings");
    }
    return PushGlobal(names[0], names[1]);
  }

  // callee(*arguments). A callee that is itself the result of a call is refused: no list of names can say what it does.
  absl::Status Reduce() {
    FSDP_ASSIGN_OR_RETURN(const std::vector<uint32_t> call, PopSome(2));
    if (values_.KindOf(call[0]) != Kind::kGlobal) {
      return input_.Refused(absl::StrCat("it wants to call ", std::string(PickleKindName(values_.KindOf(call[0]))),
                                         " that is no global: refused, and nothing was executed"));
    }
    if (values_.KindOf(call[1]) != Kind::kTuple) return input_.Broken("a call whose arguments are no tuple");
    FSDP_ASSIGN_OR_RETURN(const std::optional<uint32_t> container, values_.Container(call[0], call[1]));
    return Push(container ? *container : values_.Items(Kind::kCall, call));
  }

  absl::Status NewObject() {
    FSDP_ASSIGN_OR_RETURN(const std::vector<uint32_t> call, PopSome(2));
    if (values_.KindOf(call[0]) != Kind::kGlobal || values_.KindOf(call[1]) != Kind::kTuple) {
      return input_.Broken("NEWOBJ without a class and a tuple");
    }
    FSDP_ASSIGN_OR_RETURN(const std::optional<uint32_t> container, values_.Container(call[0], call[1]));
    return Push(container ? *container : values_.Items(Kind::kCall, call));
  }

  // object.__setstate__(state). The state of an OrderedDict is dropped: it is the _metadata (versions of modules) that
  // Module.state_dict() adds. Other containers have no state.
  absl::Status Build() {
    FSDP_ASSIGN_OR_RETURN(const uint32_t state, Pop());
    FSDP_ASSIGN_OR_RETURN(const uint32_t object, Top());
    if (values_.KindOf(object) == Kind::kDict) return absl::OkStatus();
    if (values_.KindOf(object) != Kind::kCall) {
      return input_.Refused(
          absl::StrCat("it wants to set the state of ", std::string(PickleKindName(values_.KindOf(object)))));
    }
    if (values_.ItemsOf(object).size() > 2) return input_.Broken("an object whose state is set twice");
    values_.Append(object, state);
    return absl::OkStatus();
  }

  absl::Status Persist() {
    FSDP_ASSIGN_OR_RETURN(const uint32_t name, Pop());
    return Push(values_.Persistent(name));
  }

  absl::Status PushTuple(absl::StatusOr<std::vector<uint32_t>> items) {
    FSDP_RETURN_IF_ERROR(items.status());
    return Push(values_.Items(Kind::kTuple, *std::move(items)));
  }

  // Adds items to the container on top. An item may be the container itself: the graph may have cycles.
  absl::Status AppendAll(absl::StatusOr<std::vector<uint32_t>> items, Kind kind) {
    FSDP_RETURN_IF_ERROR(items.status());
    FSDP_ASSIGN_OR_RETURN(const uint32_t container, Top());
    if (values_.KindOf(container) != kind) {
      return input_.Broken(absl::StrCat("values for ", std::string(PickleKindName(kind)), " are put into ",
                                        std::string(PickleKindName(values_.KindOf(container)))));
    }
    if (kind == Kind::kDict && items->size() % 2 != 0) return input_.Broken("a key without a value");
    for (const uint32_t item : *items) values_.Append(container, item);
    return absl::OkStatus();
  }

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
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;  // sizes of stack_
  absl::flat_hash_map<uint64_t, uint32_t> memo_;
};

absl::Status PickleMachine::Step(PickleOpcode opcode) {
  using Op = PickleOpcode;
  const auto put = [this](uint64_t index) { return Put(index); };
  const auto get = [this](uint64_t index) { return Get(index); };
  const auto integer = [this](uint64_t value) { return PushInteger(static_cast<int64_t>(value)); };
  switch (opcode) {
    case Op::kProto:
      return CheckProtocol();
    case Op::kFrame:
      return input_.SkipFrame();
    case Op::kMark:
      return Mark();
    case Op::kPop:
      if (!marks_.empty() && marks_.back() == stack_.size()) return PopToMark().status();
      return Pop().status();
    case Op::kPopMark:
      return PopToMark().status();
    case Op::kNone:
      return Push(values_.None());
    case Op::kNewTrue:
      return PushBool(true);
    case Op::kNewFalse:
      return PushBool(false);
    case Op::kInt: {
      FSDP_ASSIGN_OR_RETURN(const std::string_view line, input_.TakeLine());
      return PushDecimal(line, /*may_be_bool=*/true);
    }
    case Op::kLong: {
      FSDP_ASSIGN_OR_RETURN(const std::string_view line, input_.TakeLine());
      return PushDecimal(line, /*may_be_bool=*/false);
    }
    case Op::kBinInt:
      return WithIndex(4, [this](uint64_t v) { return PushInteger(static_cast<int32_t>(static_cast<uint32_t>(v))); });
    case Op::kBinInt1:
      return WithIndex(1, integer);
    case Op::kBinInt2:
      return WithIndex(2, integer);
    case Op::kLong1:
      return PushLong(1);
    case Op::kLong4:
      return PushLong(4);
    case Op::kFloat:
      return PushDecimalFloat();
    case Op::kBinFloat:
      return PushBigEndianFloat();
    case Op::kShortBinString:
    case Op::kShortBinUnicode:
      return PushText(Kind::kString, 1);
    case Op::kBinString:
    case Op::kBinUnicode:
      return PushText(Kind::kString, 4);
    case Op::kBinUnicode8:
      return PushText(Kind::kString, 8);
    case Op::kShortBinBytes:
      return PushText(Kind::kBytes, 1);
    case Op::kBinBytes:
      return PushText(Kind::kBytes, 4);
    case Op::kBinBytes8:
    case Op::kByteArray8:
      return PushText(Kind::kBytes, 8);
    case Op::kEmptyTuple:
      return PushTuple(std::vector<uint32_t>());
    case Op::kTuple1:
      return PushTuple(PopSome(1));
    case Op::kTuple2:
      return PushTuple(PopSome(2));
    case Op::kTuple3:
      return PushTuple(PopSome(3));
    case Op::kTuple:
      return PushTuple(PopToMark());
    case Op::kEmptyList:
      return Push(values_.Items(Kind::kList, {}));
    case Op::kAppend:
      return AppendAll(PopSome(1), Kind::kList);
    case Op::kAppends:
      return AppendAll(PopToMark(), Kind::kList);
    case Op::kEmptyDict:
      return Push(values_.Items(Kind::kDict, {}));
    case Op::kSetItem:
      return AppendAll(PopSome(2), Kind::kDict);
    case Op::kSetItems:
      return AppendAll(PopToMark(), Kind::kDict);
    case Op::kEmptySet:
      return Push(values_.Items(Kind::kSet, {}));
    case Op::kAddItems:
      return AppendAll(PopToMark(), Kind::kSet);
    case Op::kFrozenSet: {
      FSDP_ASSIGN_OR_RETURN(std::vector<uint32_t> items, PopToMark());
      return Push(values_.Items(Kind::kSet, std::move(items)));
    }
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
    case Op::kGlobal:
      return PushGlobalOfLines();
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
      return input_.Refused(absl::StrFormat("opcode 0x%02x, which no state dict needs", static_cast<int>(opcode)));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pickle>> Pickle::Parse(std::string_view bytes, const PickleOptions& options) {
  const int64_t limit = std::min<int64_t>(options.limits.max_bytes, std::numeric_limits<uint32_t>::max());
  if (static_cast<int64_t>(bytes.size()) > limit) bytes = bytes.substr(0, limit);
  std::unique_ptr<Pickle> pickle(new Pickle(bytes));
  PickleInput input(bytes);
  PickleBuilder values(*pickle, input);
  FSDP_ASSIGN_OR_RETURN(pickle->root_, PickleMachine(input, values, options).Run());
  pickle->size_ = static_cast<int64_t>(input.at());
  return pickle;
}

}  // namespace fsdp
