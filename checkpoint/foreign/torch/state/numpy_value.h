// SPDX-License-Identifier: Apache-2.0
//
// NumpyValue: numbers and small arrays of numpy among plain values: a best loss, the state of a random generator. They
// are kept with their bytes, and written as numpy's own pickles, so that they come back equal:
//
//   numpy.float64(0.5)   {"__python__": "numpy", "module": "numpy._core.multiarray", "dtype": "<f8", "shape": null,
//                         "hex": "000000000000e03f"}
//
// An array of floating-point numbers could be a weight, and a large array is not a value like those above: both stay
// objects, which are named and not read (torch_objects.h), like arrays of texts, of dates and of objects.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_NUMPY_VALUE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_NUMPY_VALUE_H_

#include <cstdint>
#include <optional>

#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"

namespace fsdp {

class PickleWriter;

inline constexpr char kNumpyTag[] = "numpy";

// Of an array that is kept, in bytes.
inline constexpr int64_t kMaxNumpyBytes = 16384;

// The JSON of a call of a function that IsNumpyGlobal names; nullopt for what stays an object. Copies BytesOfNumpy
// bytes, which is 0 for such a call, and their text.
std::optional<PythonJson> JsonOfNumpy(PickleValue call);
int64_t BytesOfNumpy(PickleValue call);

// True for the JSON that JsonOfNumpy makes of some value; false for any other, which no pickle may be written from.
bool IsNumpyJson(const PythonJson& json);

// Pushes the value. Precondition: IsNumpyJson(json).
void WriteNumpy(const PythonJson& json, PickleWriter& pickle);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_NUMPY_VALUE_H_
