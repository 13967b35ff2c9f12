// SPDX-License-Identifier: Apache-2.0
//
// CudnnDescriptor: the owner of one descriptor of cuDNN's backend, and CudnnDescriptorBuilder, which makes one. A
// descriptor is filled with attributes and then finalised, at which point cuDNN checks it; from then on it can only be
// read. The builder keeps the first failure and returns it at the end, so that a chain of attributes reads as a list:
//
//   FSDP_ASSIGN_OR_RETURN(CudnnDescriptor plan, CudnnDescriptorBuilder(library, cudnn::DescriptorType::kExecutionPlan)
//                                                   .Set(cudnn::Attribute::kPlanEngineConfig, config)
//                                                   .Finalize("the plan"));
//
// Not thread-safe while it is built.
#ifndef FSDP_NN_CUDNN_CUDNN_DESCRIPTOR_H_
#define FSDP_NN_CUDNN_CUDNN_DESCRIPTOR_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/nn/cudnn/cudnn_library.h"

namespace fsdp {

class CudnnDescriptor {
 public:
  // None.
  CudnnDescriptor() = default;

  static absl::StatusOr<CudnnDescriptor> Create(const CudnnLibrary& library, cudnn::DescriptorType type);

  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept;
  ~CudnnDescriptor();

  void* get() const { return descriptor_; }

  // The attribute's one integer.
  absl::StatusOr<int64_t> GetInt64(cudnn::Attribute name) const;

  // Up to `room` of the attribute's elements, of the type of `T`; T is an enumeration of 4 bytes, or char.
  template <typename T>
  absl::StatusOr<std::vector<T>> Get(cudnn::Attribute name, cudnn::AttributeType type, int64_t room) const {
    std::vector<T> elements(static_cast<size_t>(room));
    int64_t count = 0;
    absl::Status status = GetElements(name, type, room, &count, elements.data());
    if (!status.ok()) return status;
    elements.resize(static_cast<size_t>(count < room ? count : room));
    return elements;
  }

  // Fills `room`, descriptors of the attribute's type that were created and not finalised, and returns how many.
  absl::StatusOr<int64_t> GetDescriptors(cudnn::Attribute name, absl::Span<const CudnnDescriptor> room) const;

 private:
  friend class CudnnDescriptorBuilder;

  absl::Status GetElements(cudnn::Attribute name, cudnn::AttributeType type, int64_t room, int64_t* count,
                           void* elements) const;

  const CudnnLibrary* library_ = nullptr;
  void* descriptor_ = nullptr;
};

class CudnnDescriptorBuilder {
 public:
  // `library` must outlive what is built.
  CudnnDescriptorBuilder(const CudnnLibrary& library, cudnn::DescriptorType type);

  CudnnDescriptorBuilder& Set(cudnn::Attribute name, bool value);
  CudnnDescriptorBuilder& Set(cudnn::Attribute name, int64_t value);
  CudnnDescriptorBuilder& Set(cudnn::Attribute name, absl::Span<const int64_t> values);
  CudnnDescriptorBuilder& Set(cudnn::Attribute name, cudnn::DataType value);
  CudnnDescriptorBuilder& Set(cudnn::Attribute name, cudnn::PointwiseMode value);
  CudnnDescriptorBuilder& Set(cudnn::Attribute name, cudnn::ReductionOperator value);
  CudnnDescriptorBuilder& Set(cudnn::Attribute name, cudnn::HeuristicMode value);
  // cuDNN keeps descriptors that others refer to for as long as it needs them.
  CudnnDescriptorBuilder& Set(cudnn::Attribute name, const CudnnDescriptor& value);
  CudnnDescriptorBuilder& Set(cudnn::Attribute name, absl::Span<const CudnnDescriptor> values);
  CudnnDescriptorBuilder& SetHandle(cudnn::Attribute name, void* handle);
  CudnnDescriptorBuilder& SetPointers(cudnn::Attribute name, absl::Span<void* const> pointers);
  CudnnDescriptorBuilder& SetText(cudnn::Attribute name, const std::string& text);

  // The descriptor, or the first error of all calls; `what` names the descriptor in messages.
  absl::StatusOr<CudnnDescriptor> Finalize(const std::string& what);

 private:
  CudnnDescriptorBuilder& SetElements(cudnn::Attribute name, cudnn::AttributeType type, int64_t count,
                                      const void* elements);

  const CudnnLibrary& library_;
  absl::Status status_;
  CudnnDescriptor descriptor_;
};

}  // namespace fsdp

#endif  // FSDP_NN_CUDNN_CUDNN_DESCRIPTOR_H_
