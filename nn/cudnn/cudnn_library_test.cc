// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cudnn/cudnn_library.h"

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

#if __has_include(<cudnn_backend.h>) && __has_include(<cuda_runtime_api.h>)
#include <cudnn_backend.h>
#endif

namespace fsdp {
namespace {

using ::testing::HasSubstr;

TEST(CudnnLibraryTest, ALibraryThatIsNotThereIsNamed) {
  EXPECT_THAT(LoadCudnnFrom("/nowhere/libcudnn.so.9"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/libcudnn.so.9")));
}

TEST(CudnnLibraryTest, AnotherLibraryIsRefused) {
  EXPECT_THAT(LoadCudnnFrom("libc.so.6"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("libc.so.6 has no cudnnGetVersion")));
}

#ifdef CUDNN_VERSION
template <typename Ours, typename Theirs>
void ExpectIs(Ours ours, Theirs theirs) {
  EXPECT_EQ(static_cast<int>(ours), static_cast<int>(theirs));
}
#endif

TEST(CudnnLibraryTest, TheNumbersAreThoseOfTheInstalledHeader) {
#ifdef CUDNN_VERSION
  EXPECT_EQ(cudnn::kSuccess, CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnn::kBadParam, CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnn::kNotSupported, CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cudnn::kExecutionFailed, CUDNN_STATUS_EXECUTION_FAILED);
  ExpectIs(cudnn::DataType::kFloat, CUDNN_DATA_FLOAT);
  ExpectIs(cudnn::DataType::kHalf, CUDNN_DATA_HALF);
  ExpectIs(cudnn::DataType::kInt32, CUDNN_DATA_INT32);
  ExpectIs(cudnn::DataType::kBFloat16, CUDNN_DATA_BFLOAT16);
  ExpectIs(cudnn::DataType::kBoolean, CUDNN_DATA_BOOLEAN);
  ExpectIs(cudnn::PointwiseMode::kAdd, CUDNN_POINTWISE_ADD);
  ExpectIs(cudnn::PointwiseMode::kMul, CUDNN_POINTWISE_MUL);
  ExpectIs(cudnn::PointwiseMode::kDiv, CUDNN_POINTWISE_DIV);
  ExpectIs(cudnn::PointwiseMode::kSub, CUDNN_POINTWISE_SUB);
  ExpectIs(cudnn::PointwiseMode::kExp, CUDNN_POINTWISE_EXP);
  ExpectIs(cudnn::PointwiseMode::kLog, CUDNN_POINTWISE_LOG);
  ExpectIs(cudnn::PointwiseMode::kCmpGe, CUDNN_POINTWISE_CMP_GE);
  ExpectIs(cudnn::PointwiseMode::kGenIndex, CUDNN_POINTWISE_GEN_INDEX);
  ExpectIs(cudnn::PointwiseMode::kBinarySelect, CUDNN_POINTWISE_BINARY_SELECT);
  ExpectIs(cudnn::ReductionOperator::kAdd, CUDNN_REDUCE_TENSOR_ADD);
  ExpectIs(cudnn::ReductionOperator::kMax, CUDNN_REDUCE_TENSOR_MAX);
  ExpectIs(cudnn::HeuristicMode::kA, CUDNN_HEUR_MODE_A);
  ExpectIs(cudnn::NumericalNote::kNondeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  ExpectIs(cudnn::DescriptorType::kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kEngineHeuristic, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kExecutionPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kOperationPointwise, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kOperationGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kMatmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kOperationMatmul, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kOperationReduction, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kOperationReshape, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  ExpectIs(cudnn::DescriptorType::kDeviceProperties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  ExpectIs(cudnn::Attribute::kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE);
  ExpectIs(cudnn::Attribute::kPointwiseMathPrecision, CUDNN_ATTR_POINTWISE_MATH_PREC);
  ExpectIs(cudnn::Attribute::kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS);
  ExpectIs(cudnn::Attribute::kHeuristicMode, CUDNN_ATTR_ENGINEHEUR_MODE);
  ExpectIs(cudnn::Attribute::kHeuristicOperationGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  ExpectIs(cudnn::Attribute::kHeuristicResults, CUDNN_ATTR_ENGINEHEUR_RESULTS);
  ExpectIs(cudnn::Attribute::kHeuristicDeviceProperties, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  ExpectIs(cudnn::Attribute::kEngineConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE);
  ExpectIs(cudnn::Attribute::kPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
  ExpectIs(cudnn::Attribute::kPlanEngineConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  ExpectIs(cudnn::Attribute::kPlanWorkspaceSize, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  ExpectIs(cudnn::Attribute::kOperationPointwiseDescriptor, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  ExpectIs(cudnn::Attribute::kOperationPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  ExpectIs(cudnn::Attribute::kOperationPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  ExpectIs(cudnn::Attribute::kOperationPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  ExpectIs(cudnn::Attribute::kOperationPointwiseT, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
  ExpectIs(cudnn::Attribute::kOperationGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
  ExpectIs(cudnn::Attribute::kOperationGraphOperations, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  ExpectIs(cudnn::Attribute::kTensorByteAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  ExpectIs(cudnn::Attribute::kTensorDataType, CUDNN_ATTR_TENSOR_DATA_TYPE);
  ExpectIs(cudnn::Attribute::kTensorDimensions, CUDNN_ATTR_TENSOR_DIMENSIONS);
  ExpectIs(cudnn::Attribute::kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES);
  ExpectIs(cudnn::Attribute::kTensorUniqueId, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  ExpectIs(cudnn::Attribute::kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  ExpectIs(cudnn::Attribute::kTensorIsByValue, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  ExpectIs(cudnn::Attribute::kVariantPackUniqueIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  ExpectIs(cudnn::Attribute::kVariantPackDataPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  ExpectIs(cudnn::Attribute::kVariantPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  ExpectIs(cudnn::Attribute::kEngineNumericalNotes, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
  ExpectIs(cudnn::Attribute::kMatmulComputeType, CUDNN_ATTR_MATMUL_COMP_TYPE);
  ExpectIs(cudnn::Attribute::kOperationMatmulA, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
  ExpectIs(cudnn::Attribute::kOperationMatmulB, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
  ExpectIs(cudnn::Attribute::kOperationMatmulC, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
  ExpectIs(cudnn::Attribute::kOperationMatmulDescriptor, CUDNN_ATTR_OPERATION_MATMUL_DESC);
  ExpectIs(cudnn::Attribute::kReductionOperator, CUDNN_ATTR_REDUCTION_OPERATOR);
  ExpectIs(cudnn::Attribute::kReductionComputeType, CUDNN_ATTR_REDUCTION_COMP_TYPE);
  ExpectIs(cudnn::Attribute::kOperationReductionX, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
  ExpectIs(cudnn::Attribute::kOperationReductionY, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
  ExpectIs(cudnn::Attribute::kOperationReductionDescriptor, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  ExpectIs(cudnn::Attribute::kOperationReshapeX, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
  ExpectIs(cudnn::Attribute::kOperationReshapeY, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
  ExpectIs(cudnn::Attribute::kDevicePropertiesJson, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
  ExpectIs(cudnn::AttributeType::kHandle, CUDNN_TYPE_HANDLE);
  ExpectIs(cudnn::AttributeType::kDataType, CUDNN_TYPE_DATA_TYPE);
  ExpectIs(cudnn::AttributeType::kBoolean, CUDNN_TYPE_BOOLEAN);
  ExpectIs(cudnn::AttributeType::kInt64, CUDNN_TYPE_INT64);
  ExpectIs(cudnn::AttributeType::kVoidPointer, CUDNN_TYPE_VOID_PTR);
  ExpectIs(cudnn::AttributeType::kHeuristicMode, CUDNN_TYPE_HEUR_MODE);
  ExpectIs(cudnn::AttributeType::kNumericalNote, CUDNN_TYPE_NUMERICAL_NOTE);
  ExpectIs(cudnn::AttributeType::kPointwiseMode, CUDNN_TYPE_POINTWISE_MODE);
  ExpectIs(cudnn::AttributeType::kDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
  ExpectIs(cudnn::AttributeType::kReductionOperator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
  ExpectIs(cudnn::AttributeType::kChar, CUDNN_TYPE_CHAR);
#else
  GTEST_SKIP() << "cudnn_backend.h is not installed: there is nothing to compare with";
#endif
}

}  // namespace
}  // namespace fsdp
