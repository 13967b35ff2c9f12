// SPDX-License-Identifier: Apache-2.0
//
// SlotStorage: the storage of one parameter of a module of LibTorch that FSDP shards. It has no memory of its own:
// while the parameter's unit is unsharded it refers to the unit's slot; otherwise a use is an error that names the
// parameter. Views of the parameter and the tensors that autograd saved for backward share this one object, so they
// follow it: backward reads the last gathered values, never another unit's values in the same slot.
#ifndef FSDP_LIBTORCH_SLOT_STORAGE_H_
#define FSDP_LIBTORCH_SLOT_STORAGE_H_

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <string>

namespace fsdp {

class OperandCasts;

// SlotOwner: gives a storage its memory when it is used.
class SlotOwner {
 public:
  virtual ~SlotOwner() = default;

  // An operator is about to use a storage of its own; `in_place`: to write it. Must not throw.
  virtual void OnUse(int index, bool in_place) = 0;

  // How an operator that gets storage `index` casts its other operands; null: not at all. Called after OnUse.
  virtual OperandCasts* casts(int index) {
    (void)index;
    return nullptr;
  }
};

// Tensors own it by reference count, and may outlive the owner, which must call Disown before it goes.
class SlotStorage final : public c10::StorageImpl {
 public:
  // `nbytes` is the size of the tensor that will use it.
  SlotStorage(SlotOwner* owner, int index, int64_t nbytes, c10::Device device)
      : c10::StorageImpl(use_byte_size_t(), nbytes, at::DataPtr(nullptr, device), /*allocator=*/nullptr,
                         /*resizable=*/false),
        owner_(owner),
        index_(index) {}

  SlotOwner* owner() const { return owner_; }
  void Disown() { owner_ = nullptr; }
  int index() const { return index_; }
  bool bound() const { return bound_; }
  // The address it is bound to; null if it is not bound.
  const void* address() const { return address_; }

  void Bind(void* data, int64_t nbytes);

  // A use throws c10::Error with `message`.
  void Unbind(const std::string& message);

  // A tensor of contiguous `sizes` over `storage`, which may be unbound.
  static at::Tensor NewTensor(const c10::intrusive_ptr<SlotStorage>& storage, at::ScalarType type,
                              at::IntArrayRef sizes);

  // The SlotStorage of a tensor, or null if its storage is of another kind.
  static SlotStorage* Of(const at::Tensor& tensor);

 private:
  void AllowUse();

  SlotOwner* owner_;
  const int index_;
  bool bound_ = false;
  const void* address_ = nullptr;
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_SLOT_STORAGE_H_
