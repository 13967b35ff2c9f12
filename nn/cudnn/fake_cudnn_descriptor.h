// SPDX-License-Identifier: Apache-2.0
//
// FakeCudnnDescriptor: a descriptor of fake_cudnn: a bag of attributes, whose owners and types are checked when they
// are set, and translated into a graph when an operation graph is finalised. Not thread-safe, as cuDNN's are not.
#ifndef FSDP_NN_CUDNN_FAKE_CUDNN_DESCRIPTOR_H_
#define FSDP_NN_CUDNN_FAKE_CUDNN_DESCRIPTOR_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/nn/cudnn/cudnn_library.h"
#include "fsdp/nn/cudnn/fake_cudnn_graph.h"

namespace fsdp {

struct FakeCudnnDescriptor {
  using Attribute = cudnn::Attribute;

  // The attribute's elements. Precondition: it is set.
  template <typename T>
  std::vector<T> All(Attribute name) const {
    const std::vector<std::byte>& bytes = attributes.at(name);
    std::vector<T> elements(bytes.size() / sizeof(T));
    std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(T));
    return elements;
  }
  template <typename T>
  T One(Attribute name) const {
    T element;
    std::memcpy(&element, attributes.at(name).data(), sizeof(T));
    return element;
  }
  bool Has(Attribute name) const { return attributes.count(name) != 0; }
  const FakeCudnnDescriptor& At(Attribute name) const {
    return *static_cast<const FakeCudnnDescriptor*>(One<void*>(name));
  }

  // Sets the attribute, or returns the reason if it cannot be set: another descriptor's, another type, or a descriptor
  // not finalised.
  std::string Set(Attribute name, cudnn::AttributeType of_type, int64_t count, const void* elements);
  // A message about the first required attribute that was not set; empty if all were.
  std::string Missing() const;

  cudnn::DescriptorType type = cudnn::DescriptorType::kTensor;
  bool is_finalized = false;
  std::map<Attribute, std::vector<std::byte>> attributes;
  std::shared_ptr<const FakeCudnnGraph> graph;  // of an operation graph, and of engines and plans for it
  int engine = 0;                               // of an engine configuration or an engine: its rank
  int64_t workspace_bytes = 0;                  // of a plan
};

// Precondition: a tensor.
FakeCudnnTensor FakeTensorOf(const FakeCudnnDescriptor& descriptor);

// Precondition: an operation graph that is not finalised.
FakeCudnnGraph FakeGraphOf(const FakeCudnnDescriptor& descriptor);

}  // namespace fsdp

#endif  // FSDP_NN_CUDNN_FAKE_CUDNN_DESCRIPTOR_H_
