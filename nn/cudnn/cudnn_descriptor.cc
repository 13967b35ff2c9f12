// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cudnn/cudnn_descriptor.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<CudnnDescriptor> CudnnDescriptor::Create(const CudnnLibrary& library, cudnn::DescriptorType type) {
  CudnnDescriptor made;
  FSDP_RETURN_IF_ERROR(library.StatusOf(library.create_descriptor(type, &made.descriptor_),
                                        absl::StrCat("cudnnBackendCreateDescriptor of type ", static_cast<int>(type))));
  // Set last: the destructor needs it only if a descriptor was created.
  made.library_ = &library;
  return made;
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : library_(other.library_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}

CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  // Swaps, so that `other`'s destructor frees the old descriptor.
  std::swap(library_, other.library_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) library_->destroy_descriptor(descriptor_);
}

absl::StatusOr<int64_t> CudnnDescriptor::GetInt64(cudnn::Attribute name) const {
  int64_t value = 0, count = 0;
  FSDP_RETURN_IF_ERROR(GetElements(name, cudnn::AttributeType::kInt64, 1, &count, &value));
  return value;
}

absl::StatusOr<int64_t> CudnnDescriptor::GetDescriptors(cudnn::Attribute name,
                                                        absl::Span<const CudnnDescriptor> room) const {
  // cuDNN fills descriptors that the caller has created; it does not create them.
  std::vector<void*> descriptors;
  for (const CudnnDescriptor& descriptor : room) descriptors.push_back(descriptor.get());
  int64_t count = 0;
  FSDP_RETURN_IF_ERROR(GetElements(name, cudnn::AttributeType::kDescriptor, static_cast<int64_t>(descriptors.size()),
                                   &count, descriptors.data()));
  return count;
}

absl::Status CudnnDescriptor::GetElements(cudnn::Attribute name, cudnn::AttributeType type, int64_t room,
                                          int64_t* count, void* elements) const {
  return library_->StatusOf(library_->get_attribute(descriptor_, name, type, room, count, elements),
                            absl::StrCat("cudnnBackendGetAttribute ", static_cast<int>(name)));
}

CudnnDescriptorBuilder::CudnnDescriptorBuilder(const CudnnLibrary& library, cudnn::DescriptorType type)
    : library_(library) {
  absl::StatusOr<CudnnDescriptor> made = CudnnDescriptor::Create(library, type);
  // Kept like a failed Set, so that a chain of calls needs one check, at its end.
  status_ = made.status();
  if (made.ok()) descriptor_ = *std::move(made);
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::Set(cudnn::Attribute name, bool value) {
  return SetElements(name, cudnn::AttributeType::kBoolean, 1, &value);
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::Set(cudnn::Attribute name, int64_t value) {
  return SetElements(name, cudnn::AttributeType::kInt64, 1, &value);
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::Set(cudnn::Attribute name, absl::Span<const int64_t> values) {
  return SetElements(name, cudnn::AttributeType::kInt64, static_cast<int64_t>(values.size()), values.data());
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::Set(cudnn::Attribute name, cudnn::DataType value) {
  return SetElements(name, cudnn::AttributeType::kDataType, 1, &value);
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::Set(cudnn::Attribute name, cudnn::PointwiseMode value) {
  return SetElements(name, cudnn::AttributeType::kPointwiseMode, 1, &value);
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::Set(cudnn::Attribute name, cudnn::ReductionOperator value) {
  return SetElements(name, cudnn::AttributeType::kReductionOperator, 1, &value);
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::Set(cudnn::Attribute name, cudnn::HeuristicMode value) {
  return SetElements(name, cudnn::AttributeType::kHeuristicMode, 1, &value);
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::Set(cudnn::Attribute name, const CudnnDescriptor& value) {
  return Set(name, absl::MakeConstSpan(&value, 1));
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::Set(cudnn::Attribute name, absl::Span<const CudnnDescriptor> values) {
  std::vector<void*> descriptors;
  for (const CudnnDescriptor& value : values) descriptors.push_back(value.get());
  return SetElements(name, cudnn::AttributeType::kDescriptor, static_cast<int64_t>(descriptors.size()),
                     descriptors.data());
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::SetHandle(cudnn::Attribute name, void* handle) {
  return SetElements(name, cudnn::AttributeType::kHandle, 1, &handle);
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::SetPointers(cudnn::Attribute name, absl::Span<void* const> pointers) {
  return SetElements(name, cudnn::AttributeType::kVoidPointer, static_cast<int64_t>(pointers.size()), pointers.data());
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::SetText(cudnn::Attribute name, const std::string& text) {
  return SetElements(name, cudnn::AttributeType::kChar, static_cast<int64_t>(text.size()), text.data());
}

CudnnDescriptorBuilder& CudnnDescriptorBuilder::SetElements(cudnn::Attribute name, cudnn::AttributeType type,
                                                            int64_t count, const void* elements) {
  // After the first failure nothing more is set: that error is the one that Finalize returns.
  if (!status_.ok()) return *this;
  status_ = library_.StatusOf(library_.set_attribute(descriptor_.get(), name, type, count, elements),
                              absl::StrCat("cudnnBackendSetAttribute ", static_cast<int>(name)));
  return *this;
}

absl::StatusOr<CudnnDescriptor> CudnnDescriptorBuilder::Finalize(const std::string& what) {
  FSDP_RETURN_IF_ERROR(status_);
  FSDP_RETURN_IF_ERROR(
      library_.StatusOf(library_.finalize(descriptor_.get()), absl::StrCat("cudnnBackendFinalize of ", what)));
  return std::move(descriptor_);
}

}  // namespace fsdp
