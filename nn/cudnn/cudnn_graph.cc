// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cudnn/cudnn_graph.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

using cudnn::Attribute;
using cudnn::AttributeType;
using cudnn::DataType;
using cudnn::DescriptorType;
using cudnn::PointwiseMode;

// The alignment of addresses that the engines for attention may assume.
constexpr int64_t kAlignment = 16;

// More than cuDNN's heuristics offer for attention.
constexpr int kMostEngines = 16;

// True if the engine of `config` may give other bits in the next run.
absl::StatusOr<bool> IsNondeterministic(const CudnnLibrary& library, const CudnnDescriptor& config) {
  std::vector<CudnnDescriptor> engine(1);
  FSDP_ASSIGN_OR_RETURN(engine[0], CudnnDescriptor::Create(library, DescriptorType::kEngine));
  FSDP_RETURN_IF_ERROR(config.GetDescriptors(Attribute::kEngineConfigEngine, engine).status());
  constexpr int64_t kMostNotes = 32;
  FSDP_ASSIGN_OR_RETURN(
      const std::vector<cudnn::NumericalNote> notes,
      engine[0].Get<cudnn::NumericalNote>(Attribute::kEngineNumericalNotes, AttributeType::kNumericalNote, kMostNotes));
  return std::find(notes.begin(), notes.end(), cudnn::NumericalNote::kNondeterministic) != notes.end();
}

}  // namespace

CudnnLayout CudnnLayout::Packed(const Dims& dims) {
  return {dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}};
}

CudnnLayout CudnnLayout::Transposed() const {
  CudnnLayout transposed = *this;
  // Only strides change: the transposed view is of the same memory.
  std::swap(transposed.dims[2], transposed.dims[3]);
  std::swap(transposed.strides[2], transposed.strides[3]);
  return transposed;
}

CudnnGraph::Tensor CudnnGraph::InMemory(int64_t uid, DataType dtype, const CudnnLayout& layout) {
  CudnnDescriptorBuilder builder(library_, DescriptorType::kTensor);
  builder.Set(Attribute::kTensorUniqueId, uid);
  return AddTensor(builder, dtype, layout);
}

CudnnGraph::Tensor CudnnGraph::Virtual(DataType dtype, const CudnnLayout& layout) {
  CudnnDescriptorBuilder builder(library_, DescriptorType::kTensor);
  builder.Set(Attribute::kTensorUniqueId, next_virtual_++).Set(Attribute::kTensorIsVirtual, true);
  return AddTensor(builder, dtype, layout);
}

CudnnGraph::Tensor CudnnGraph::ByValue(int64_t uid) {
  CudnnDescriptorBuilder builder(library_, DescriptorType::kTensor);
  builder.Set(Attribute::kTensorUniqueId, uid).Set(Attribute::kTensorIsByValue, true);
  return AddTensor(builder, DataType::kFloat, CudnnLayout::Packed({1, 1, 1, 1}));
}

CudnnGraph::Tensor CudnnGraph::AddTensor(CudnnDescriptorBuilder& builder, DataType dtype, const CudnnLayout& layout) {
  builder.Set(Attribute::kTensorDataType, dtype)
      .Set(Attribute::kTensorDimensions, layout.dims)
      .Set(Attribute::kTensorStrides, layout.strides)
      .Set(Attribute::kTensorByteAlignment, kAlignment);
  absl::StatusOr<CudnnDescriptor> made = builder.Finalize("a tensor");
  // The caller gets a tensor even after a failure, so that a graph reads as a list of operations; Engines returns the
  // first failure before anything uses the empty descriptor.
  if (status_.ok()) status_ = made.status();
  tensors_.push_back(made.ok() ? *std::move(made) : CudnnDescriptor());
  return {tensors_.size() - 1};
}

const CudnnDescriptor* CudnnGraph::Keep(absl::StatusOr<CudnnDescriptor> made) {
  if (status_.ok()) status_ = made.status();
  if (!made.ok()) return nullptr;
  parts_.push_back(*std::move(made));
  return &parts_.back();
}

void CudnnGraph::AddOperation(absl::StatusOr<CudnnDescriptor> made) {
  if (status_.ok()) status_ = made.status();
  if (made.ok()) operations_.push_back(*std::move(made));
}

CudnnGraph::Tensor CudnnGraph::Matmul(Tensor a, Tensor b, Tensor out) {
  const CudnnDescriptor* const matmul = Keep(CudnnDescriptorBuilder(library_, DescriptorType::kMatmul)
                                                 .Set(Attribute::kMatmulComputeType, DataType::kFloat)
                                                 .Finalize("a matmul"));
  if (matmul == nullptr) return out;
  AddOperation(CudnnDescriptorBuilder(library_, DescriptorType::kOperationMatmul)
                   .Set(Attribute::kOperationMatmulDescriptor, *matmul)
                   .Set(Attribute::kOperationMatmulA, descriptor(a))
                   .Set(Attribute::kOperationMatmulB, descriptor(b))
                   .Set(Attribute::kOperationMatmulC, descriptor(out))
                   .Finalize("a matmul operation"));
  return out;
}

CudnnGraph::Tensor CudnnGraph::Pointwise(PointwiseMode mode, std::initializer_list<Tensor> operands, Tensor out) {
  return AddPointwise(CudnnDescriptorBuilder(library_, DescriptorType::kPointwise)
                          .Set(Attribute::kPointwiseMode, mode)
                          .Set(Attribute::kPointwiseMathPrecision, DataType::kFloat)
                          .Finalize("a pointwise function"),
                      operands, out);
}

CudnnGraph::Tensor CudnnGraph::Index(int64_t axis, Tensor x, Tensor out) {
  return AddPointwise(CudnnDescriptorBuilder(library_, DescriptorType::kPointwise)
                          .Set(Attribute::kPointwiseMode, PointwiseMode::kGenIndex)
                          .Set(Attribute::kPointwiseMathPrecision, DataType::kFloat)
                          .Set(Attribute::kPointwiseAxis, axis)
                          .Finalize("an index"),
                      {x}, out);
}

CudnnGraph::Tensor CudnnGraph::GreaterOrEqual(Tensor a, Tensor b, Tensor out) {
  return AddPointwise(CudnnDescriptorBuilder(library_, DescriptorType::kPointwise)
                          .Set(Attribute::kPointwiseMode, PointwiseMode::kCmpGe)
                          .Set(Attribute::kPointwiseMathPrecision, DataType::kBoolean)
                          .Finalize("a comparison"),
                      {a, b}, out);
}

CudnnGraph::Tensor CudnnGraph::AddPointwise(absl::StatusOr<CudnnDescriptor> made,
                                            std::initializer_list<Tensor> operands, Tensor out) {
  const CudnnDescriptor* const function = Keep(std::move(made));
  if (function == nullptr) return out;
  CudnnDescriptorBuilder operation(library_, DescriptorType::kOperationPointwise);
  operation.Set(Attribute::kOperationPointwiseDescriptor, *function);
  // X and B are the operands; T is the condition of a select.
  constexpr Attribute kOperands[] = {Attribute::kOperationPointwiseX, Attribute::kOperationPointwiseB,
                                     Attribute::kOperationPointwiseT};
  for (size_t i = 0; i < operands.size(); ++i) operation.Set(kOperands[i], descriptor(operands.begin()[i]));
  AddOperation(operation.Set(Attribute::kOperationPointwiseY, descriptor(out)).Finalize("a pointwise operation"));
  return out;
}

CudnnGraph::Tensor CudnnGraph::Reduce(cudnn::ReductionOperator op, Tensor x, Tensor out) {
  const CudnnDescriptor* const reduction = Keep(CudnnDescriptorBuilder(library_, DescriptorType::kReduction)
                                                    .Set(Attribute::kReductionOperator, op)
                                                    .Set(Attribute::kReductionComputeType, DataType::kFloat)
                                                    .Finalize("a reduction"));
  if (reduction == nullptr) return out;
  AddOperation(CudnnDescriptorBuilder(library_, DescriptorType::kOperationReduction)
                   .Set(Attribute::kOperationReductionDescriptor, *reduction)
                   .Set(Attribute::kOperationReductionX, descriptor(x))
                   .Set(Attribute::kOperationReductionY, descriptor(out))
                   .Finalize("a reduction operation"));
  return out;
}

CudnnGraph::Tensor CudnnGraph::Reshape(Tensor x, Tensor out) {
  AddOperation(CudnnDescriptorBuilder(library_, DescriptorType::kOperationReshape)
                   .Set(Attribute::kOperationReshapeX, descriptor(x))
                   .Set(Attribute::kOperationReshapeY, descriptor(out))
                   .Finalize("a reshape operation"));
  return out;
}

absl::StatusOr<std::vector<CudnnDescriptor>> CudnnGraph::Engines(const Target& target, const std::string& what) {
  FSDP_RETURN_IF_ERROR(status_);
  CudnnDescriptorBuilder graph_builder(library_, DescriptorType::kOperationGraph);
  graph_builder.Set(Attribute::kOperationGraphOperations, operations_);
  // A graph for a description of a GPU has no handle: its engines can be counted but not run.
  if (target.handle != nullptr) graph_builder.SetHandle(Attribute::kOperationGraphHandle, target.handle);
  const CudnnDescriptor* const graph = Keep(graph_builder.Finalize(what));
  FSDP_RETURN_IF_ERROR(status_);
  CudnnDescriptorBuilder heuristic_builder(library_, DescriptorType::kEngineHeuristic);
  heuristic_builder.Set(Attribute::kHeuristicOperationGraph, *graph)
      .Set(Attribute::kHeuristicMode, cudnn::HeuristicMode::kA);
  // Without it cuDNN takes the GPU of the handle.
  if (target.device != nullptr) heuristic_builder.Set(Attribute::kHeuristicDeviceProperties, *target.device);
  FSDP_ASSIGN_OR_RETURN(const CudnnDescriptor heuristic, heuristic_builder.Finalize(what));

  std::vector<CudnnDescriptor> offered(kMostEngines);
  for (CudnnDescriptor& config : offered) {
    FSDP_ASSIGN_OR_RETURN(config, CudnnDescriptor::Create(library_, DescriptorType::kEngineConfig));
  }
  FSDP_ASSIGN_OR_RETURN(const int64_t count, heuristic.GetDescriptors(Attribute::kHeuristicResults, offered));
  std::vector<CudnnDescriptor> engines;
  // cuDNN reports how many engines it has, which may be more than the room for them.
  for (int64_t i = 0; i < std::min<int64_t>(count, kMostEngines); ++i) {
    FSDP_ASSIGN_OR_RETURN(const bool varies, IsNondeterministic(library_, offered[i]));
    if (!varies) engines.push_back(std::move(offered[i]));
  }
  if (engines.empty()) {
    return absl::UnimplementedError(absl::StrCat("cuDNN ", library_.Version(), ": ", what, ": none of ", count,
                                                 " engines gives equal results in every run"));
  }
  return engines;
}

absl::StatusOr<CudnnPlan> CudnnGraph::Plan(void* handle, const std::string& what) {
  FSDP_ASSIGN_OR_RETURN(std::vector<CudnnDescriptor> engines, Engines({.handle = handle}, what));
  // The first engine that this GPU can plan for, in cuDNN's order of preference; the first refusal is the error if
  // it can plan for no engine.
  absl::Status why;
  for (CudnnDescriptor& engine : engines) {
    absl::StatusOr<CudnnDescriptor> plan = CudnnDescriptorBuilder(library_, DescriptorType::kExecutionPlan)
                                               .SetHandle(Attribute::kPlanHandle, handle)
                                               .Set(Attribute::kPlanEngineConfig, engine)
                                               .Finalize(what);
    if (why.ok()) why = plan.status();
    if (!plan.ok()) continue;
    FSDP_ASSIGN_OR_RETURN(const int64_t workspace, plan->GetInt64(Attribute::kPlanWorkspaceSize));
    // The plan refers to the graph's descriptors, so it takes all of them.
    CudnnPlan made = {.plan = *std::move(plan), .workspace_bytes = workspace, .parts = std::move(parts_)};
    for (CudnnDescriptor& operation : operations_) made.parts.push_back(std::move(operation));
    for (CudnnDescriptor& tensor : tensors_) made.parts.push_back(std::move(tensor));
    made.parts.push_back(std::move(engine));
    return made;
  }
  return why;
}

absl::StatusOr<int> CudnnGraph::CountEngines(const CudnnDescriptor& device, const std::string& what) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<CudnnDescriptor> engines, Engines({.device = &device}, what));
  return static_cast<int>(engines.size());
}

}  // namespace fsdp
