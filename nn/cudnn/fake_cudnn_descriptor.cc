// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cudnn/fake_cudnn_descriptor.h"

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

using cudnn::Attribute;
using cudnn::AttributeType;
using cudnn::DescriptorType;

// Which descriptor an attribute belongs to and its type, as cuDNN documents them; others are refused.
struct AttributeRule {
  DescriptorType owner;
  AttributeType type;
  bool is_required = true;
};

const std::map<Attribute, AttributeRule>& Rules() {
  using A = Attribute;
  using D = DescriptorType;
  using T = AttributeType;
  static const auto* const rules = new std::map<Attribute, AttributeRule>{
      {A::kPointwiseMode, {D::kPointwise, T::kPointwiseMode}},
      {A::kPointwiseMathPrecision, {D::kPointwise, T::kDataType}},
      {A::kPointwiseAxis, {D::kPointwise, T::kInt64, false}},
      {A::kHeuristicMode, {D::kEngineHeuristic, T::kHeuristicMode}},
      {A::kHeuristicOperationGraph, {D::kEngineHeuristic, T::kDescriptor}},
      {A::kPlanHandle, {D::kExecutionPlan, T::kHandle}},
      {A::kPlanEngineConfig, {D::kExecutionPlan, T::kDescriptor}},
      {A::kOperationPointwiseDescriptor, {D::kOperationPointwise, T::kDescriptor}},
      {A::kOperationPointwiseX, {D::kOperationPointwise, T::kDescriptor}},
      {A::kOperationPointwiseB, {D::kOperationPointwise, T::kDescriptor, false}},
      {A::kOperationPointwiseT, {D::kOperationPointwise, T::kDescriptor, false}},
      {A::kOperationPointwiseY, {D::kOperationPointwise, T::kDescriptor}},
      {A::kOperationGraphHandle, {D::kOperationGraph, T::kHandle}},
      {A::kOperationGraphOperations, {D::kOperationGraph, T::kDescriptor}},
      {A::kTensorByteAlignment, {D::kTensor, T::kInt64}},
      {A::kTensorDataType, {D::kTensor, T::kDataType}},
      {A::kTensorDimensions, {D::kTensor, T::kInt64}},
      {A::kTensorStrides, {D::kTensor, T::kInt64}},
      {A::kTensorUniqueId, {D::kTensor, T::kInt64}},
      {A::kTensorIsVirtual, {D::kTensor, T::kBoolean, false}},
      {A::kTensorIsByValue, {D::kTensor, T::kBoolean, false}},
      {A::kVariantPackUniqueIds, {D::kVariantPack, T::kInt64}},
      {A::kVariantPackDataPointers, {D::kVariantPack, T::kVoidPointer}},
      {A::kVariantPackWorkspace, {D::kVariantPack, T::kVoidPointer}},
      {A::kMatmulComputeType, {D::kMatmul, T::kDataType}},
      {A::kOperationMatmulDescriptor, {D::kOperationMatmul, T::kDescriptor}},
      {A::kOperationMatmulA, {D::kOperationMatmul, T::kDescriptor}},
      {A::kOperationMatmulB, {D::kOperationMatmul, T::kDescriptor}},
      {A::kOperationMatmulC, {D::kOperationMatmul, T::kDescriptor}},
      {A::kReductionOperator, {D::kReduction, T::kReductionOperator}},
      {A::kReductionComputeType, {D::kReduction, T::kDataType}},
      {A::kOperationReductionDescriptor, {D::kOperationReduction, T::kDescriptor}},
      {A::kOperationReductionX, {D::kOperationReduction, T::kDescriptor}},
      {A::kOperationReductionY, {D::kOperationReduction, T::kDescriptor}},
      {A::kOperationReshapeX, {D::kOperationReshape, T::kDescriptor}},
      {A::kOperationReshapeY, {D::kOperationReshape, T::kDescriptor}},
  };
  return *rules;
}

size_t BytesOf(AttributeType type) {
  switch (type) {
    case AttributeType::kBoolean:
    case AttributeType::kChar:
      return 1;
    case AttributeType::kHandle:
    case AttributeType::kInt64:
    case AttributeType::kVoidPointer:
    case AttributeType::kDescriptor:
      return 8;
    // cuDNN's enumerations.
    default:
      return 4;
  }
}

FakeCudnnOperation OperationOf(const FakeCudnnDescriptor& of) {
  FakeCudnnOperation operation;
  operation.type = of.type;
  const auto tensor = [&](Attribute name) { return FakeTensorOf(of.At(name)); };
  switch (of.type) {
    case DescriptorType::kOperationMatmul:
      operation.operands = {tensor(Attribute::kOperationMatmulA), tensor(Attribute::kOperationMatmulB)};
      operation.result = tensor(Attribute::kOperationMatmulC);
      break;
    case DescriptorType::kOperationReduction:
      operation.reduction =
          of.At(Attribute::kOperationReductionDescriptor).One<cudnn::ReductionOperator>(Attribute::kReductionOperator);
      operation.operands = {tensor(Attribute::kOperationReductionX)};
      operation.result = tensor(Attribute::kOperationReductionY);
      break;
    case DescriptorType::kOperationReshape:
      operation.operands = {tensor(Attribute::kOperationReshapeX)};
      operation.result = tensor(Attribute::kOperationReshapeY);
      break;
    default: {
      const FakeCudnnDescriptor& function = of.At(Attribute::kOperationPointwiseDescriptor);
      operation.mode = function.One<cudnn::PointwiseMode>(Attribute::kPointwiseMode);
      if (function.Has(Attribute::kPointwiseAxis)) operation.axis = function.One<int64_t>(Attribute::kPointwiseAxis);
      // In this order, which the graph's Pointwise relies on.
      for (const Attribute name :
           {Attribute::kOperationPointwiseX, Attribute::kOperationPointwiseB, Attribute::kOperationPointwiseT}) {
        if (of.Has(name)) operation.operands.push_back(tensor(name));
      }
      operation.result = tensor(Attribute::kOperationPointwiseY);
    }
  }
  return operation;
}

}  // namespace

std::string FakeCudnnDescriptor::Set(Attribute name, AttributeType of_type, int64_t count, const void* elements) {
  const auto rule = Rules().find(name);
  if (rule == Rules().end() || rule->second.owner != type || is_finalized) {
    return absl::StrCat("attribute ", static_cast<int>(name), " cannot be set");
  }
  if (rule->second.type != of_type) return absl::StrCat("attribute ", static_cast<int>(name), " has another type");
  const auto* const begin = static_cast<const std::byte*>(elements);
  attributes[name].assign(begin, begin + BytesOf(of_type) * static_cast<size_t>(count));
  if (of_type != AttributeType::kDescriptor) return "";
  // cuDNN refuses to refer to a descriptor that can still change.
  for (void* const other : All<void*>(name)) {
    if (other == nullptr || !static_cast<const FakeCudnnDescriptor*>(other)->is_finalized) {
      return absl::StrCat("attribute ", static_cast<int>(name), " is not finalised");
    }
  }
  return "";
}

std::string FakeCudnnDescriptor::Missing() const {
  // Called by Finalize only, so attributes may be set in any order.
  for (const auto& [name, rule] : Rules()) {
    if (rule.owner != type || !rule.is_required || Has(name)) continue;
    return absl::StrCat("attribute ", static_cast<int>(name), " is not set");
  }
  return "";
}

FakeCudnnTensor FakeTensorOf(const FakeCudnnDescriptor& descriptor) {
  const auto is = [&](Attribute name) { return descriptor.Has(name) && descriptor.One<bool>(name); };
  return {.uid = descriptor.One<int64_t>(Attribute::kTensorUniqueId),
          .dtype = descriptor.One<cudnn::DataType>(Attribute::kTensorDataType),
          .dims = descriptor.All<int64_t>(Attribute::kTensorDimensions),
          .strides = descriptor.All<int64_t>(Attribute::kTensorStrides),
          .is_virtual = is(Attribute::kTensorIsVirtual),
          .is_by_value = is(Attribute::kTensorIsByValue)};
}

FakeCudnnGraph FakeGraphOf(const FakeCudnnDescriptor& descriptor) {
  FakeCudnnGraph graph;
  for (void* const operation : descriptor.All<void*>(Attribute::kOperationGraphOperations)) {
    graph.operations.push_back(OperationOf(*static_cast<const FakeCudnnDescriptor*>(operation)));
  }
  return graph;
}

}  // namespace fsdp
