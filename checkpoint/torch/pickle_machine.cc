// SPDX-License-Identifier: Apache-2.0
//
// The interpreter behind Pickle::Parse: Python's pickle machine (a stack, marks on it, a memo) with every effect taken
// out. It knows the opcodes that Python's pickler emits for state dicts under protocols 1 to 5, and the containers that
// are values themselves (OrderedDict, Counter, set, bytearray). All it does with anything else is to write down that it
// would have been called.
#include <cstring>
#include <limits>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "checkpoint/torch/pickle.h"
#include "checkpoint/torch/pickle_opcode.h"

namespace fsdp {

class PickleMachine {
 public:
  PickleMachine(Pickle& pickle, const PickleOptions& options)
      : pickle_(pickle), bytes_(pickle.bytes_), options_(options) {}

  absl::Status Run() {
    while (true) {
      opcode_at_ = at_;
      ASSIGN_OR_RETURN(const uint8_t code, ReadByte());
      if (static_cast<PickleOpcode>(code) == PickleOpcode::kStop) break;
      RETURN_IF_ERROR(Step(static_cast<PickleOpcode>(code)));
      if (Memory() > options_.limits.max_memory) {
        return Exceeded(absl::StrCat("its values take more than ", options_.limits.max_memory, " bytes"));
      }
    }
    ASSIGN_OR_RETURN(pickle_.root_, Pop());
    pickle_.size_ = at_;
    return absl::OkStatus();
  }

 private:
  using Kind = PickleKind;
  using Node = Pickle::Node;

  // ---- errors

  absl::Status Error(absl::StatusCode code, const std::string& what) const {
    return absl::Status(code, absl::StrCat("byte ", opcode_at_, " of the pickle: ", what));
  }
  absl::Status Broken(const std::string& what) const { return Error(absl::StatusCode::kDataLoss, what); }
  absl::Status Refused(const std::string& what) const { return Error(absl::StatusCode::kInvalidArgument, what); }
  absl::Status Exceeded(const std::string& what) const { return Error(absl::StatusCode::kResourceExhausted, what); }

  int64_t Memory() const {
    return static_cast<int64_t>(pickle_.nodes_.size() * sizeof(Node) + item_bytes_ + memo_.size() * 16 +
                                stack_.size() * sizeof(uint32_t));
  }

  // ---- the bytes

  absl::StatusOr<std::string_view> Take(uint64_t count) {
    if (count > bytes_.size() - at_) {
      return Broken(absl::StrCat("it ends where ", count, " more bytes should be: it is truncated"));
    }
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }

  absl::StatusOr<uint8_t> ReadByte() {
    ASSIGN_OR_RETURN(const std::string_view byte, Take(1));
    return static_cast<uint8_t>(byte[0]);
  }

  absl::StatusOr<uint64_t> ReadUnsigned(int nbytes) {
    ASSIGN_OR_RETURN(const std::string_view bytes, Take(nbytes));
    uint64_t value = 0;
    for (int i = 0; i < nbytes; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
    return value;
  }

  // Up to the next newline, which is taken too.
  absl::StatusOr<std::string_view> ReadLine() {
    constexpr size_t kLongest = 4096;
    const size_t end = bytes_.substr(at_, kLongest).find('\n');
    if (end == std::string_view::npos) return Broken("a line without an end");
    const std::string_view line = bytes_.substr(at_, end);
    at_ += end + 1;
    return line;
  }

  // ---- values

  uint32_t Add(Kind kind) {
    Node& node = pickle_.nodes_.emplace_back();
    node.kind = kind;
    node.place = static_cast<uint32_t>(opcode_at_);
    return static_cast<uint32_t>(pickle_.nodes_.size() - 1);
  }

  uint32_t AddItems(Kind kind, std::vector<uint32_t> items) {
    const uint32_t id = Add(kind);
    item_bytes_ += sizeof(items) + items.size() * sizeof(uint32_t);
    pickle_.nodes_[id].items = static_cast<uint32_t>(pickle_.items_.size());
    pickle_.items_.push_back(std::move(items));
    return id;
  }

  uint32_t AddText(Kind kind, std::string_view text) {
    const uint32_t id = Add(kind);
    pickle_.nodes_[id].text = {static_cast<uint32_t>(text.data() - bytes_.data()), static_cast<uint32_t>(text.size())};
    return id;
  }

  Node& NodeOf(uint32_t id) { return pickle_.nodes_[id]; }
  Kind KindOf(uint32_t id) const { return pickle_.nodes_[id].kind; }
  std::vector<uint32_t>& ItemsOf(uint32_t id) { return pickle_.items_[pickle_.nodes_[id].items]; }
  PickleValue Value(uint32_t id) const { return {&pickle_, id}; }

  void Append(uint32_t container, uint32_t item) {
    ItemsOf(container).push_back(item);
    item_bytes_ += sizeof(uint32_t);
  }

  // ---- the stack

  absl::Status Push(uint32_t id) {
    stack_.push_back(id);
    return absl::OkStatus();
  }

  // Values above the last mark only.
  absl::StatusOr<uint32_t> Pop() {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) return Broken("a value is taken from an empty stack");
    const uint32_t id = stack_.back();
    stack_.pop_back();
    return id;
  }

  absl::StatusOr<uint32_t> Top() {
    ASSIGN_OR_RETURN(const uint32_t id, Pop());
    stack_.push_back(id);
    return id;
  }

  absl::StatusOr<std::vector<uint32_t>> PopToMark() {
    if (marks_.empty()) return Broken("there is no mark to go back to");
    std::vector<uint32_t> items(stack_.begin() + static_cast<int64_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  absl::StatusOr<std::vector<uint32_t>> PopSome(int count) {
    std::vector<uint32_t> items(count);
    for (int i = count; i-- > 0;) {
      ASSIGN_OR_RETURN(items[i], Pop());
    }
    return items;
  }

  // ---- the memo

  absl::Status Put(uint64_t index) {
    ASSIGN_OR_RETURN(memo_[index], Top());
    return absl::OkStatus();
  }

  absl::Status Get(uint64_t index) {
    const auto at = memo_.find(index);
    if (at == memo_.end()) return Broken(absl::StrCat("memo entry ", index, " is read before it is written"));
    return Push(at->second);
  }

  // ---- opcodes

  absl::Status PushInteger(int64_t value) {
    const uint32_t id = Add(Kind::kInt);
    NodeOf(id).integer = value;
    return Push(id);
  }

  absl::Status PushBool(bool value) {
    const uint32_t id = Add(Kind::kBool);
    NodeOf(id).integer = value ? 1 : 0;
    return Push(id);
  }

  absl::Status PushFloat(double value) {
    const uint32_t id = Add(Kind::kFloat);
    NodeOf(id).real = value;
    return Push(id);
  }

  absl::Status PushText(Kind kind, int length_bytes) {
    ASSIGN_OR_RETURN(const uint64_t length, ReadUnsigned(length_bytes));
    if (length > static_cast<uint64_t>(options_.limits.max_string_bytes)) {
      return Exceeded(absl::StrCat("a string of ", length, " bytes, more than ", options_.limits.max_string_bytes));
    }
    ASSIGN_OR_RETURN(const std::string_view text, Take(length));
    return Push(AddText(kind, text));
  }

  // LONG1, LONG4: two's complement of any length.
  absl::Status PushLong(int length_bytes) {
    ASSIGN_OR_RETURN(const uint64_t length, ReadUnsigned(length_bytes));
    ASSIGN_OR_RETURN(const std::string_view bytes, Take(length));
    if (length > sizeof(int64_t)) return Push(AddText(Kind::kBigInt, bytes));
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
      return Broken(absl::StrCat(Quote(line), " is no integer of 64 bits"));
    }
    return PushInteger(value);
  }

  absl::Status PushDecimalFloat() {
    ASSIGN_OR_RETURN(const std::string_view line, ReadLine());
    double value = 0;
    if (!absl::SimpleAtod(absl::string_view(line.data(), line.size()), &value)) {
      return Broken(absl::StrCat(Quote(line), " is no number"));
    }
    return PushFloat(value);
  }

  absl::Status PushBigEndianFloat() {
    ASSIGN_OR_RETURN(const std::string_view bytes, Take(8));
    uint64_t bits = 0;
    for (const char byte : bytes) bits = bits << 8 | static_cast<uint8_t>(byte);
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return PushFloat(value);
  }

  absl::Status PushGlobal(uint32_t module, uint32_t name) {
    const uint32_t id = AddItems(Kind::kGlobal, {module, name});
    const std::string full_name = Value(id).name();
    if (options_.is_allowed == nullptr || !options_.is_allowed(full_name)) {
      return Refused(absl::StrCat("it wants ", Quote(full_name),
                                  ", which no state dict needs: refused, and nothing was executed"));
    }
    return Push(id);
  }

  absl::Status PushGlobalOfLines() {
    ASSIGN_OR_RETURN(const std::string_view module, ReadLine());
    ASSIGN_OR_RETURN(const std::string_view name, ReadLine());
    const uint32_t module_id = AddText(Kind::kString, module);
    return PushGlobal(module_id, AddText(Kind::kString, name));
  }

  absl::Status PushGlobalOfStack() {
    ASSIGN_OR_RETURN(const std::vector<uint32_t> names, PopSome(2));
    if (KindOf(names[0]) != Kind::kString || KindOf(names[1]) != Kind::kString) {
      return Broken("STACK_GLOBAL without two strings");
    }
    return PushGlobal(names[0], names[1]);
  }

  // callee(*arguments): containers are made, everything else is written down.
  absl::Status Reduce() {
    ASSIGN_OR_RETURN(const std::vector<uint32_t> call, PopSome(2));
    if (KindOf(call[0]) != Kind::kGlobal) {
      return Refused(absl::StrCat("it wants to call ", std::string(PickleKindName(KindOf(call[0]))),
                                  " that is no global: refused, and nothing was executed"));
    }
    if (KindOf(call[1]) != Kind::kTuple) return Broken("a call whose arguments are no tuple");
    ASSIGN_OR_RETURN(const std::optional<uint32_t> container, Container(Value(call[0]), Value(call[1])));
    return Push(container ? *container : AddItems(Kind::kCall, call));
  }

  // The container that a call of one of Python's own types makes; nothing for another call.
  absl::StatusOr<std::optional<uint32_t>> Container(PickleValue callee, PickleValue arguments) {
    const bool is_dict = callee.is_global("collections.OrderedDict") || callee.is_global("collections.Counter");
    const bool is_set = callee.is_global("builtins.set") || callee.is_global("__builtin__.set");
    const bool is_bytes = callee.is_global("_codecs.encode") || callee.is_global("builtins.bytearray") ||
                          callee.is_global("__builtin__.bytearray");
    if (!is_dict && !is_set && !is_bytes) return std::nullopt;
    if (arguments.size() == 0) return std::make_optional(Empty(is_dict, is_set));
    const PickleValue first = arguments.at(0);
    if (is_bytes) return Bytes(callee, arguments);
    if (is_dict && first.is(Kind::kDict)) return std::make_optional(AddItems(Kind::kDict, ItemsOf(first.id())));
    if (!first.is_sequence())
      return Broken(absl::StrCat(callee.name(), " of ", std::string(PickleKindName(first.kind()))));
    if (is_set) return std::make_optional(AddItems(Kind::kSet, ItemsOf(first.id())));
    std::vector<uint32_t> members;
    for (int64_t i = 0; i < first.size(); ++i) {
      if (!first.at(i).is_sequence() || first.at(i).size() != 2) return Broken("an OrderedDict of no pairs");
      members.push_back(first.at(i).at(0).id());
      members.push_back(first.at(i).at(1).id());
    }
    return std::make_optional(AddItems(Kind::kDict, std::move(members)));
  }

  uint32_t Empty(bool is_dict, bool is_set) {
    if (is_dict) return AddItems(Kind::kDict, {});
    if (is_set) return AddItems(Kind::kSet, {});
    return AddText(Kind::kBytes, bytes_.substr(0, 0));
  }

  // Protocol 2 writes bytes as _codecs.encode(string, "latin1"). Only ASCII is the same in both.
  absl::StatusOr<std::optional<uint32_t>> Bytes(PickleValue callee, PickleValue arguments) {
    const PickleValue first = arguments.at(0);
    if (first.is(Kind::kBytes)) return std::make_optional(first.id());
    if (!first.is(Kind::kString)) return Broken(absl::StrCat(callee.name(), " of no string"));
    for (const char byte : first.text()) {
      if ((static_cast<uint8_t>(byte) & 0x80) != 0) return std::nullopt;  // stays a call, with its string
    }
    return std::make_optional(AddText(Kind::kBytes, first.text()));
  }

  absl::Status NewObject() {
    ASSIGN_OR_RETURN(const std::vector<uint32_t> call, PopSome(2));
    if (KindOf(call[0]) != Kind::kGlobal || KindOf(call[1]) != Kind::kTuple) {
      return Broken("NEWOBJ without a class and a tuple");
    }
    ASSIGN_OR_RETURN(const std::optional<uint32_t> container, Container(Value(call[0]), Value(call[1])));
    return Push(container ? *container : AddItems(Kind::kCall, call));
  }

  // The state of an object. An OrderedDict's is what its module adds (versions); it is dropped.
  absl::Status Build() {
    ASSIGN_OR_RETURN(const uint32_t state, Pop());
    ASSIGN_OR_RETURN(const uint32_t object, Top());
    if (KindOf(object) == Kind::kDict) return absl::OkStatus();
    if (KindOf(object) != Kind::kCall) {
      return Refused(absl::StrCat("it wants to set the state of ", std::string(PickleKindName(KindOf(object)))));
    }
    if (ItemsOf(object).size() > 2) return Broken("an object whose state is set twice");
    Append(object, state);
    return absl::OkStatus();
  }

  absl::Status Persist() {
    ASSIGN_OR_RETURN(const uint32_t name, Pop());
    const uint32_t id = AddItems(Kind::kPersistent, {name});
    pickle_.persistent_.push_back(id);
    return Push(id);
  }

  absl::Status PushTuple(absl::StatusOr<std::vector<uint32_t>> items) {
    RETURN_IF_ERROR(items.status());
    return Push(AddItems(Kind::kTuple, *std::move(items)));
  }

  absl::Status AppendAll(absl::StatusOr<std::vector<uint32_t>> items, Kind kind) {
    RETURN_IF_ERROR(items.status());
    ASSIGN_OR_RETURN(const uint32_t container, Top());
    if (KindOf(container) != kind) {
      return Broken(absl::StrCat("values for ", std::string(PickleKindName(kind)), " are put into ",
                                 std::string(PickleKindName(KindOf(container)))));
    }
    if (kind == Kind::kDict && items->size() % 2 != 0) return Broken("a key without a value");
    for (const uint32_t item : *items) Append(container, item);
    return absl::OkStatus();
  }

  absl::Status Mark() {
    if (static_cast<int>(marks_.size()) >= options_.limits.max_depth) {
      return Exceeded(absl::StrCat("more than ", options_.limits.max_depth, " values are open inside each other"));
    }
    marks_.push_back(stack_.size());
    return absl::OkStatus();
  }

  absl::Status SkipFrame() {
    ASSIGN_OR_RETURN(const uint64_t length, ReadUnsigned(8));
    if (length > bytes_.size() - at_) return Broken(absl::StrCat("a frame of ", length, " bytes: it is truncated"));
    return absl::OkStatus();
  }

  absl::Status CheckProtocol() {
    ASSIGN_OR_RETURN(const uint8_t protocol, ReadByte());
    if (protocol <= 5) return absl::OkStatus();
    return Refused(absl::StrCat("pickle protocol ", int{protocol}, ", expected at most 5"));
  }

  template <typename Read>
  absl::Status WithIndex(int nbytes, Read read) {
    ASSIGN_OR_RETURN(const uint64_t index, ReadUnsigned(nbytes));
    return read(index);
  }

  absl::Status Step(PickleOpcode opcode);

  Pickle& pickle_;
  const std::string_view bytes_;
  const PickleOptions& options_;
  size_t at_ = 0;         // of the next byte
  size_t opcode_at_ = 0;  // of the opcode that is being executed
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;  // sizes of stack_
  absl::flat_hash_map<uint64_t, uint32_t> memo_;
  size_t item_bytes_ = 0;
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
      return SkipFrame();
    case Op::kMark:
      return Mark();
    case Op::kPop:
      if (!marks_.empty() && marks_.back() == stack_.size()) return PopToMark().status();
      return Pop().status();
    case Op::kPopMark:
      return PopToMark().status();
    case Op::kNone:
      return Push(Add(Kind::kNone));
    case Op::kNewTrue:
      return PushBool(true);
    case Op::kNewFalse:
      return PushBool(false);
    case Op::kInt: {
      ASSIGN_OR_RETURN(const std::string_view line, ReadLine());
      return PushDecimal(line, /*may_be_bool=*/true);
    }
    case Op::kLong: {
      ASSIGN_OR_RETURN(const std::string_view line, ReadLine());
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
      return Push(AddItems(Kind::kList, {}));
    case Op::kAppend:
      return AppendAll(PopSome(1), Kind::kList);
    case Op::kAppends:
      return AppendAll(PopToMark(), Kind::kList);
    case Op::kEmptyDict:
      return Push(AddItems(Kind::kDict, {}));
    case Op::kSetItem:
      return AppendAll(PopSome(2), Kind::kDict);
    case Op::kSetItems:
      return AppendAll(PopToMark(), Kind::kDict);
    case Op::kEmptySet:
      return Push(AddItems(Kind::kSet, {}));
    case Op::kAddItems:
      return AppendAll(PopToMark(), Kind::kSet);
    case Op::kFrozenSet: {
      ASSIGN_OR_RETURN(std::vector<uint32_t> items, PopToMark());
      return Push(AddItems(Kind::kSet, std::move(items)));
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
      return Refused(absl::StrFormat("opcode 0x%02x, which no state dict needs", static_cast<int>(opcode)));
  }
}

absl::StatusOr<std::unique_ptr<Pickle>> Pickle::Parse(std::string_view bytes, const PickleOptions& options) {
  const int64_t limit = std::min<int64_t>(options.limits.max_bytes, std::numeric_limits<uint32_t>::max());
  if (static_cast<int64_t>(bytes.size()) > limit) bytes = bytes.substr(0, limit);
  std::unique_ptr<Pickle> pickle(new Pickle(bytes));
  RETURN_IF_ERROR(PickleMachine(*pickle, options).Run());
  return pickle;
}

}  // namespace fsdp
