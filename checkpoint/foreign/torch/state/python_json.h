// SPDX-License-Identifier: Apache-2.0
//
// Python values as JSON and back, without loss, for the values of a checkpoint that are not tensors: learning rates,
// schedules, epochs. A value that JSON cannot express is an object with the member "__python__":
//
//   (0.9, 0.95)         {"__python__": "tuple", "items": [0.9, 0.95]}
//   {30: 1}             {"__python__": "dict", "items": [[30, 1]]}
//   float("inf")        {"__python__": "float", "value": "inf"}
//   b"\x01"             {"__python__": "bytes", "hex": "01"}; also "bytearray"
//   2**64               {"__python__": "int", "hex": "000000000000000001"}, little-endian
//   "\ud800"            {"__python__": "str", "hex": "eda080"}
//   {1, 2}              {"__python__": "set", "items": [1, 2]}; also "frozenset"
//   Counter({2: 1})     {"__python__": "Counter", "items": [[2, 1]]}; also "OrderedDict"
//   1 + 2j              {"__python__": "complex", "items": [1.0, 2.0]}
//   numpy.int64(3)      {"__python__": "numpy", ...}: numpy_value.h
//   torch.float32       {"__python__": "global", "name": "torch.float32"}
//   torch.device("cpu") {"__python__": "call", "name": "torch.device", "items": ["cpu"]}
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PYTHON_JSON_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PYTHON_JSON_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_budget.h"
#include "nlohmann/json.hpp"

namespace fsdp {

using PythonJson = nlohmann::ordered_json;  // keeps the order of dicts

inline constexpr char kPythonTag[] = "__python__";

// The tag of an object of any other class: {"__python__": "object", "name": "argparse.Namespace", "place": 57}, at that
// byte of its pickle. It has no value, and is never part of a text: torch_objects.h takes it out of a tree. "what"
// describes, in place of both, a value that has no form here; "tensor": true is a tensor in a form that is not read,
// "large": true a value that is too large.
inline constexpr char kObjectTag[] = "object";

// The tag of a part of an extra value that is an entry of the state dict (extra_parts.h):
// {"__python__": "reference", "name": "rng.torch"}.
inline constexpr char kReferenceTag[] = "reference";

// Deeper values are refused; the JSON of a value nests up to three times as deeply.
inline constexpr int kMaxPythonDepth = 48;

// A value that has no such form (a tensor, an object with a state) is an object. kInvalidArgument for a dict that has a
// key twice; kResourceExhausted for a value that is too large or deep. Takes the memory of the JSON and its text from
// `budget`.
absl::StatusOr<PythonJson> JsonOfPickle(PickleValue value, PickleBudget& budget);

// The object that `what` describes, with its byte of the pickle, in place of `value`.
absl::StatusOr<PythonJson> ObjectOfPickle(PickleValue value, const std::string& what, bool is_tensor,
                                          PickleBudget& budget);

// True if `text` begins as JSON does, so that TextOfPython has to parse it.
bool MayBeJson(std::string_view text);

// Parses `text`. Returns a discarded value (is_discarded()) if it is not JSON or is nested deeper than JsonOfPickle
// allows.
PythonJson ParsePythonJson(const std::string& text);

// The first object (kObjectTag) in `json`, or null.
const PythonJson* FindObject(const PythonJson& json);

// Adds a member that `object` does not have, without searching for it: dicts may have a million.
void AppendMember(PythonJson& object, std::string name, PythonJson value);

// `json`, param_groups, in the form of this project's: a list of objects, whose members "betas", "params" and
// "param_names" are lists. All other values stay as they are.
PythonJson WithPlainGroups(const PythonJson& json);

// The members of `json` if it is a dict, of any type, whose keys are texts or integers, which get their digits for a
// name, as in a tree; nullopt for all other values.
std::optional<PythonJson> MembersOf(const PythonJson& json);

// An extra value of ours is a text. The text of a value is its JSON, but the text of a string is the string itself,
// unless that could be read as a value: then it is quoted. One to one, so that both survive a round trip.
std::string TextOfPython(const PythonJson& value);
PythonJson PythonOfText(const std::string& text);

// True if `json` has only tags of the table above and kReferenceTag, and every global in it, called or not, is on the
// list for torch files (torch_globals.h). A checkpoint of unknown origin may hold any text, and a pickle that is
// written from it must not make torch.load import or call anything else.
bool NamesOnlyTorchGlobals(const PythonJson& json);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_PYTHON_JSON_H_
