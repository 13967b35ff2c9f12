// SPDX-License-Identifier: Apache-2.0
//
// PickleWriter: a pickle of protocol 2, opcode by opcode, as torch.save and DCP write them. Only globals are memoized.
// Equal calls give equal bytes. Every function appends one opcode with its arguments (Integers, Python and Global may
// append several); the caller is responsible for the unpickler's stack. Strings are below 4 GiB.
//
//   PickleWriter pickle;
//   pickle.EmptyDict();
//   pickle.Mark();
//   pickle.String("lr");
//   pickle.Float(0.1);
//   pickle.SetItems();
//   std::string bytes = std::move(pickle).Finish();   // {"lr": 0.1}
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PICKLE_WRITER_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PICKLE_WRITER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_opcode.h"
#include "fsdp/checkpoint/foreign/torch/state/literal_tensor.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"

namespace fsdp {

class PickleWriter {
 public:
  PickleWriter();

  // These push a value.
  void None() { Emit(PickleOpcode::kNone); }
  void Bool(bool value) { Emit(value ? PickleOpcode::kNewTrue : PickleOpcode::kNewFalse); }
  void Integer(int64_t value);
  void Float(double value);
  void String(std::string_view text);
  void Integers(absl::Span<const int64_t> values);  // as a tuple
  void Bytes(std::string_view bytes);               // as a call that makes them
  void Global(std::string_view name);               // "torch._utils._rebuild_tensor_v2"

  // Pushes the value from which JsonOfPickle made `json`. Globals in it are written unchecked: see
  // NamesOnlyTorchGlobals. Tensors in it (literal_tensor.h) are passed to `write_tensor`, which must be set if there
  // are any; it has to push one value.
  void Python(const PythonJson& json);
  std::function<void(const LiteralTensor&)> write_tensor;
  // The same for references (kReferenceTag), by name. Not set: None.
  std::function<void(const std::string&)> write_reference;

  // Containers and calls: push an empty container, open a group, or take operands from the stack, as in
  // pickle_opcode.h.
  void EmptyDict() { Emit(PickleOpcode::kEmptyDict); }
  void EmptyList() { Emit(PickleOpcode::kEmptyList); }
  void EmptyTuple() { Emit(PickleOpcode::kEmptyTuple); }
  void Mark() { Emit(PickleOpcode::kMark); }
  void Tuple() { Emit(PickleOpcode::kTuple); }        // of the values after the mark
  void SetItems() { Emit(PickleOpcode::kSetItems); }  // into the dict before the mark
  void Appends() { Emit(PickleOpcode::kAppends); }    // to the list before the mark
  void Reduce() { Emit(PickleOpcode::kReduce); }
  void NewObject() { Emit(PickleOpcode::kNewObj); }
  void Build() { Emit(PickleOpcode::kBuild); }
  void PersistentId() { Emit(PickleOpcode::kBinPersId); }

  // The pickle, with STOP at its end; exactly one value must be on the stack.
  std::string Finish() &&;

 private:
  void Emit(PickleOpcode opcode) { bytes_.push_back(static_cast<char>(opcode)); }
  void EmitInteger(uint64_t value, int nbytes);
  void Items(const PythonJson& items);  // between a mark and the opcode that the caller emits
  void Tagged(const PythonJson& json);
  bool TaggedBytes(std::string_view tag, const std::string& bytes);  // false for a tag of another kind of value
  bool TaggedItems(std::string_view tag, const PythonJson& items);
  void BigInteger(std::string_view bytes);  // little-endian two's complement
  void Pairs(const PythonJson& pairs);      // into the dict on the stack
  template <typename Push>
  void Called(std::string_view global, Push push_arguments);  // pushes the result

  std::string bytes_;
  std::map<std::string, uint32_t, std::less<>> memo_;  // of globals
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PICKLE_WRITER_H_
