// SPDX-License-Identifier: Apache-2.0
//
// The allow-lists: the globals that the pickles of torch.save and of DCP may name, and the dtypes among them. Nothing
// here is imported or called; a name is only compared with a list.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_TORCH_GLOBALS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_TORCH_GLOBALS_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// True for the globals, including dtypes, that torch.load(weights_only=True) accepts for dense tensors and plain
// values, and for Python's other containers.
bool IsTorchGlobal(std::string_view name);

// True for the functions and classes in the pickles of numpy's numbers and arrays.
bool IsNumpyGlobal(std::string_view name);

// True for the functions and classes in the pickle of a DTensor.
bool IsDTensorGlobal(std::string_view name);

// True for the classes of programs whose objects are read as the plain values in them: the attributes of an object, as
// a dict, or the value of an enum.
bool IsPlainObject(std::string_view name);

// True for IsTorchGlobal, and for the classes of a DCP directory's .metadata.
bool IsDcpGlobal(std::string_view name);

// The global of a dtype ("torch.float32") or of a storage with one ("torch.FloatStorage"). kInvalidArgument names a
// torch dtype that this project does not support, such as qint8.
absl::StatusOr<DType> DTypeOfGlobal(std::string_view name);

// "torch.FloatStorage"; "torch.storage.UntypedStorage" for the dtypes without their own storage class.
std::string_view StorageGlobal(DType dtype);
inline constexpr std::string_view kUntypedStorage = "torch.storage.UntypedStorage";

// True for both spellings of UntypedStorage.
bool IsUntypedStorage(std::string_view name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_TORCH_GLOBALS_H_
