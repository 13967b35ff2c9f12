// SPDX-License-Identifier: Apache-2.0
//
// Names are "module.name" as the pickle spells them, so an object that Python or torch has moved is listed under each
// of its modules: Python 2 and protocol 2 call builtins __builtin__; Python 3.13 has pathlib._local.
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

using namespace std::string_view_literals;  // NOLINT: literals

struct NamedDType {
  std::string_view global;
  DType dtype;
};

// Storage classes first: the writer uses the first global of a dtype that ends in Storage.
constexpr std::array kDTypes = {
    NamedDType{"torch.DoubleStorage", DType::kFloat64},
    NamedDType{"torch.FloatStorage", DType::kFloat32},
    NamedDType{"torch.BFloat16Storage", DType::kBFloat16},
    NamedDType{"torch.HalfStorage", DType::kFloat16},
    NamedDType{"torch.LongStorage", DType::kInt64},
    NamedDType{"torch.IntStorage", DType::kInt32},
    NamedDType{"torch.ShortStorage", DType::kInt16},
    NamedDType{"torch.CharStorage", DType::kInt8},
    NamedDType{"torch.ByteStorage", DType::kUInt8},
    NamedDType{"torch.BoolStorage", DType::kBool},
    NamedDType{"torch.ComplexFloatStorage", DType::kComplex64},
    NamedDType{"torch.ComplexDoubleStorage", DType::kComplex128},
    NamedDType{"torch.float64", DType::kFloat64},
    NamedDType{"torch.float32", DType::kFloat32},
    NamedDType{"torch.bfloat16", DType::kBFloat16},
    NamedDType{"torch.float16", DType::kFloat16},
    NamedDType{"torch.float8_e4m3fn", DType::kFloat8E4M3FN},
    NamedDType{"torch.float8_e5m2", DType::kFloat8E5M2},
    NamedDType{"torch.float8_e4m3fnuz", DType::kFloat8E4M3FNUZ},
    NamedDType{"torch.float8_e5m2fnuz", DType::kFloat8E5M2FNUZ},
    NamedDType{"torch.float8_e8m0fnu", DType::kFloat8E8M0FNU},
    NamedDType{"torch.float4_e2m1fn_x2", DType::kFloat4E2M1FNx2},
    NamedDType{"torch.complex32", DType::kComplex32},
    NamedDType{"torch.complex64", DType::kComplex64},
    NamedDType{"torch.complex128", DType::kComplex128},
    NamedDType{"torch.int64", DType::kInt64},
    NamedDType{"torch.int32", DType::kInt32},
    NamedDType{"torch.int16", DType::kInt16},
    NamedDType{"torch.int8", DType::kInt8},
    NamedDType{"torch.uint64", DType::kUInt64},
    NamedDType{"torch.uint32", DType::kUInt32},
    NamedDType{"torch.uint16", DType::kUInt16},
    NamedDType{"torch.uint8", DType::kUInt8},
    NamedDType{"torch.bool", DType::kBool},
};

// Dtypes that torch has and this project does not: kept as values, and named in the error about a tensor of one.
constexpr std::array kOtherDTypes = {
    "torch.int1"sv,     "torch.int2"sv,   "torch.int3"sv,   "torch.int4"sv,  "torch.int5"sv,
    "torch.int6"sv,     "torch.int7"sv,   "torch.qint32"sv, "torch.qint8"sv, "torch.quint2x4"sv,
    "torch.quint4x2"sv, "torch.quint8"sv, "torch.uint1"sv,  "torch.uint2"sv, "torch.uint3"sv,
    "torch.uint4"sv,    "torch.uint5"sv,  "torch.uint6"sv,  "torch.uint7"sv,
};

// In Python, these have no effect beyond creating a tensor, a container or a plain value. torch.load(weights_only=
// True) has a longer list; the globals that are missing here (sparse and quantized tensors) have no place in a
// StateDict, and AdviceOnGlobal says how to save such values. It lacks frozenset and bytes, so it cannot load b"".
constexpr std::array kTorchGlobals = {
    "_codecs.encode"sv,
    "__builtin__.bytearray"sv,
    "__builtin__.bytes"sv,
    "__builtin__.complex"sv,
    "__builtin__.frozenset"sv,
    "__builtin__.set"sv,
    "builtins.bytearray"sv,
    "builtins.bytes"sv,
    "builtins.complex"sv,
    "builtins.frozenset"sv,
    "builtins.set"sv,
    "collections.Counter"sv,
    "collections.OrderedDict"sv,
    "torch.Size"sv,
    "torch.Tensor"sv,
    "torch.UntypedStorage"sv,
    "torch._tensor._rebuild_from_type_v2"sv,
    "torch._utils._rebuild_parameter"sv,
    "torch._utils._rebuild_parameter_with_state"sv,
    "torch._utils._rebuild_tensor"sv,
    "torch._utils._rebuild_tensor_v2"sv,
    "torch._utils._rebuild_tensor_v3"sv,
    "torch.device"sv,
    "torch.nn.parameter.Parameter"sv,
    "torch.serialization._get_layout"sv,
    "torch.storage.UntypedStorage"sv,
};

// A DTensor, the part of one rank, and what describes it (state/dtensor_reader.h). Their modules have moved between
// versions of torch.
constexpr std::array kDTensorGlobals = {
    "torch._utils._rebuild_wrapper_subclass"sv,
    "torch.distributed._mesh_layout._FlatLayout"sv,
    "torch.distributed._mesh_layout._MeshLayout"sv,
    "torch.distributed._tensor._dtensor_spec.DTensorSpec"sv,
    "torch.distributed._tensor._dtensor_spec.TensorMeta"sv,
    "torch.distributed._tensor.api.DTensor"sv,
    "torch.distributed._tensor.placement_types.DTensorSpec"sv,
    "torch.distributed._tensor.placement_types.Replicate"sv,
    "torch.distributed._tensor.placement_types.Shard"sv,
    "torch.distributed._tensor.placement_types.TensorMeta"sv,
    "torch.distributed._tensor.placement_types._Partial"sv,
    "torch.distributed._tensor.placement_types._StridedShard"sv,
    "torch.distributed.device_mesh.DeviceMesh"sv,
    "torch.distributed.tensor.DTensor"sv,
    "torch.distributed.tensor._api.DTensor"sv,
    "torch.distributed.tensor._dtensor_spec.DTensorSpec"sv,
    "torch.distributed.tensor._dtensor_spec.ShardOrderEntry"sv,
    "torch.distributed.tensor._dtensor_spec.TensorMeta"sv,
    "torch.distributed.tensor.placement_types.Partial"sv,
    "torch.distributed.tensor.placement_types.Replicate"sv,
    "torch.distributed.tensor.placement_types.Shard"sv,
    "torch.distributed.tensor.placement_types._StridedShard"sv,
};

// DeepSpeed's objects whose attributes are plain values, and its enum.
constexpr std::array kPlainObjects = {
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"sv,
    "deepspeed.runtime.fp16.loss_scaler.LossScaler"sv,
    "deepspeed.runtime.zero.config.ZeroStageEnum"sv,
    "deepspeed.utils.tensor_fragment.fragment_address"sv,
};

// Their calls are numbers and arrays, if numpy_value.h knows their arguments.
constexpr std::array kNumpyGlobals = {
    "numpy._core.multiarray._reconstruct"sv,
    "numpy._core.multiarray.scalar"sv,
    "numpy.core.multiarray._reconstruct"sv,
    "numpy.core.multiarray.scalar"sv,
    "numpy.dtype"sv,
    "numpy.ndarray"sv,
};

// The dataclasses of .metadata. Their modules have moved between versions of torch, hence several spellings of one
// class.
constexpr std::array kDcpGlobals = {
    "pathlib.PosixPath"sv,
    "pathlib.WindowsPath"sv,
    "pathlib._local.PosixPath"sv,
    "pathlib._local.WindowsPath"sv,
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING"sv,
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties"sv,
    "torch.distributed.checkpoint.filesystem._StorageInfo"sv,
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata"sv,
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata"sv,
    "torch.distributed.checkpoint.metadata.Metadata"sv,
    "torch.distributed.checkpoint.metadata.MetadataIndex"sv,
    "torch.distributed.checkpoint.metadata.StorageMeta"sv,
    "torch.distributed.checkpoint.metadata.TensorProperties"sv,
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata"sv,
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING"sv,
    // The ranks' plans, which Megatron-Core puts into .metadata too; nothing in them is read.
    "megatron.core.dist_checkpointing.strategies.torch.MCoreSavePlan"sv,
    "torch.distributed.checkpoint.planner.BytesIOWriteData"sv,
    "torch.distributed.checkpoint.planner.SavePlan"sv,
    "torch.distributed.checkpoint.planner.TensorWriteData"sv,
    "torch.distributed.checkpoint.planner.WriteItem"sv,
    "torch.distributed.checkpoint.planner.WriteItemType"sv,
};

template <typename List>
bool Contains(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

const NamedDType* FindDType(std::string_view name) {
  const auto* const at =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const NamedDType& named) { return named.global == name; });
  return at == kDTypes.end() ? nullptr : at;
}

}  // namespace

bool IsTorchGlobal(std::string_view name) {
  // kOtherDTypes pass the gate so that DTypeOfGlobal can name them in its error.
  return Contains(kTorchGlobals, name) || FindDType(name) != nullptr || Contains(kOtherDTypes, name);
}

bool IsNumpyGlobal(std::string_view name) { return Contains(kNumpyGlobals, name); }

bool IsDTensorGlobal(std::string_view name) { return Contains(kDTensorGlobals, name); }

bool IsPlainObject(std::string_view name) { return Contains(kPlainObjects, name); }

bool IsDcpGlobal(std::string_view name) { return IsTorchGlobal(name) || Contains(kDcpGlobals, name); }

absl::StatusOr<DType> DTypeOfGlobal(std::string_view name) {
  const NamedDType* const named = FindDType(name);
  if (named != nullptr) return named->dtype;
  return absl::InvalidArgumentError(absl::StrCat(Quote(name), " is not a dtype that this project supports"));
}

std::string_view StorageGlobal(DType dtype) {
  // torch has no storage class for the dtypes that came after UntypedStorage (float8, unsigned integers).
  for (const NamedDType& named : kDTypes) {
    const std::string_view suffix = "Storage";
    if (named.dtype == dtype && named.global.substr(named.global.size() - suffix.size()) == suffix) return named.global;
  }
  return kUntypedStorage;
}

bool IsUntypedStorage(std::string_view name) { return name == kUntypedStorage || name == "torch.UntypedStorage"; }

}  // namespace fsdp
