// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/slot_storage.h"

namespace fsdp {

#ifdef FSDP_LIBTORCH_KEEPS_STORAGE_ERRORS
// LibTorch before 2026 can set this flag with its public functions, but not clear it. An explicit instantiation may
// name private members.
template <bool c10::StorageImpl::*kFlag>
struct FlagOfErrors {
  friend bool& ThrowsErrors(c10::StorageImpl& storage) { return storage.*kFlag; }
};
template struct FlagOfErrors<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
bool& ThrowsErrors(c10::StorageImpl& storage);
#endif

// Takes effect when the address is set.
void SlotStorage::AllowUse() {
#ifdef FSDP_LIBTORCH_KEEPS_STORAGE_ERRORS
  ThrowsErrors(*this) = false;
#else
  clear_data_ptr_access_error_msg_();
#endif
}

void SlotStorage::Bind(void* data, int64_t nbytes) {
  AllowUse();
  set_data_ptr_noswap(at::DataPtr(data, device()));
  set_nbytes(static_cast<size_t>(nbytes));
  bound_ = true;
  address_ = data;
}

void SlotStorage::Unbind(const std::string& message) {
  AllowUse();
  const c10::Device where = device();
  set_data_ptr_noswap(at::DataPtr(nullptr, where));
  release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  bound_ = false;
  address_ = nullptr;
}

at::Tensor SlotStorage::NewTensor(const c10::intrusive_ptr<SlotStorage>& storage, at::ScalarType type,
                                  at::IntArrayRef sizes) {
  const c10::DispatchKey key = c10::computeDispatchKey(type, at::kStrided, storage->device());
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key),
                                                               c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

SlotStorage* SlotStorage::Of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return dynamic_cast<SlotStorage*>(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

}  // namespace fsdp
