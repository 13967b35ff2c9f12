// SPDX-License-Identifier: Apache-2.0
//
// CudnnLibrary: the part of cuDNN's backend API that fused attention uses, found in the installed shared library when a
// program first asks for it. No program is linked with cuDNN or needs its headers to compile: a program built without
// them uses the library if it is installed, and otherwise runs on our own kernels.
//
// The numbers below are cuDNN 9's binary interface (libcudnn.so.9); cudnn_library_test.cc compares them with cudnn.h if
// that is installed.
#ifndef FSDP_NN_CUDNN_CUDNN_LIBRARY_H_
#define FSDP_NN_CUDNN_CUDNN_LIBRARY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct CUstream_st;

namespace fsdp {

// Values of cuDNN's enumerations, by cuDNN's names.
namespace cudnn {

// cudnnStatus_t. Thousands are the category: 2 a bad parameter, 3 not supported, 4 internal, 5 execution failed.
using Status = int;
inline constexpr Status kSuccess = 0;
inline constexpr Status kBadParam = 2000;
inline constexpr Status kNotSupported = 3000;
inline constexpr Status kExecutionFailed = 5000;

enum class DataType : int { kFloat = 0, kHalf = 2, kInt32 = 4, kBFloat16 = 9, kBoolean = 11 };

enum class PointwiseMode : int {
  kAdd = 0,
  kMul = 1,
  kDiv = 6,
  kSub = 9,
  kExp = 13,
  kLog = 15,
  kCmpGe = 303,
  kGenIndex = 501,
  kBinarySelect = 601,
};

enum class ReductionOperator : int { kAdd = 0, kMax = 3 };

enum class HeuristicMode : int { kA = 3 };

enum class NumericalNote : int { kNondeterministic = 4 };

// cudnnBackendDescriptorType_t.
enum class DescriptorType : int {
  kPointwise = 0,
  kEngine = 2,
  kEngineConfig = 3,
  kEngineHeuristic = 4,
  kExecutionPlan = 5,
  kOperationPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kOperationMatmul = 19,
  kReduction = 21,
  kOperationReduction = 22,
  kOperationReshape = 31,
  kDeviceProperties = 38,
};

// cudnnBackendAttributeName_t.
enum class Attribute : int {
  kPointwiseMode = 0,
  kPointwiseMathPrecision = 1,
  kPointwiseAxis = 9,
  kHeuristicMode = 200,
  kHeuristicOperationGraph = 201,
  kHeuristicResults = 202,
  kHeuristicDeviceProperties = 204,
  kEngineConfigEngine = 300,
  kPlanHandle = 400,
  kPlanEngineConfig = 401,
  kPlanWorkspaceSize = 402,
  kOperationPointwiseDescriptor = 750,
  kOperationPointwiseX = 751,
  kOperationPointwiseB = 752,
  kOperationPointwiseY = 753,
  kOperationPointwiseT = 758,
  kOperationGraphHandle = 800,
  kOperationGraphOperations = 801,
  kTensorByteAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorUniqueId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kVariantPackUniqueIds = 1000,
  kVariantPackDataPointers = 1001,
  kVariantPackWorkspace = 1003,
  kEngineNumericalNotes = 1303,
  kMatmulComputeType = 1500,
  kOperationMatmulA = 1520,
  kOperationMatmulB = 1521,
  kOperationMatmulC = 1522,
  kOperationMatmulDescriptor = 1523,
  kReductionOperator = 1600,
  kReductionComputeType = 1601,
  kOperationReductionX = 1610,
  kOperationReductionY = 1611,
  kOperationReductionDescriptor = 1612,
  kOperationReshapeX = 2200,
  kOperationReshapeY = 2201,
  kDevicePropertiesJson = 2702,
};

// cudnnBackendAttributeType_t.
enum class AttributeType : int {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kVoidPointer = 6,
  kHeuristicMode = 8,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kReductionOperator = 18,
  kChar = 24,
};

// The first release whose attention is right for every sequence length; earlier ones compute wrong gradients if the
// length is not a multiple of 128.
inline constexpr size_t kOldestVersion = 91501;

}  // namespace cudnn

// cuDNN's functions. Handles and descriptors are opaque. Pointers are valid for the life of the process.
struct CudnnLibrary {
  size_t (*get_version)() = nullptr;
  const char* (*get_error_string)(cudnn::Status status) = nullptr;
  void (*get_last_error_string)(char* message, size_t size) = nullptr;
  cudnn::Status (*create)(void** handle) = nullptr;
  cudnn::Status (*destroy)(void* handle) = nullptr;
  cudnn::Status (*set_stream)(void* handle, CUstream_st* stream) = nullptr;
  cudnn::Status (*create_descriptor)(cudnn::DescriptorType type, void** descriptor) = nullptr;
  cudnn::Status (*destroy_descriptor)(void* descriptor) = nullptr;
  cudnn::Status (*finalize)(void* descriptor) = nullptr;
  cudnn::Status (*set_attribute)(void* descriptor, cudnn::Attribute name, cudnn::AttributeType type, int64_t count,
                                 const void* elements) = nullptr;
  cudnn::Status (*get_attribute)(void* descriptor, cudnn::Attribute name, cudnn::AttributeType type, int64_t room,
                                 int64_t* count, void* elements) = nullptr;
  cudnn::Status (*execute)(void* handle, void* plan, void* variant_pack) = nullptr;

  // "9.19.0".
  std::string Version() const;

  // OK for kSuccess; else a Status that names `call`, cuDNN's name of the status and its own last message.
  // kUnimplemented if cuDNN does not support the request, else kInternal.
  absl::Status StatusOf(cudnn::Status status, const std::string& call) const;
};

// Loads the library at `path`, as of dlopen(3), and keeps it loaded. kNotFound if the file does not exist,
// kFailedPrecondition if the library is older than kOldestVersion or lacks a function.
absl::StatusOr<CudnnLibrary> LoadCudnnFrom(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_NN_CUDNN_CUDNN_LIBRARY_H_
