// SPDX-License-Identifier: Apache-2.0
//
// UseObserver: calls SlotOwner::OnUse before any operator of LibTorch that gets the storage as an operand. This is how
// FSDP learns, in forward and in backward, that a unit is about to compute; torch::nn::Module has no hooks. It uses
// LibTorch's RecordFunction, the API of profilers, for one thread and for the autograd threads that work for it.
#ifndef FSDP_LIBTORCH_USE_OBSERVER_H_
#define FSDP_LIBTORCH_USE_OBSERVER_H_

#include <ATen/record_function.h>

#include <thread>

namespace fsdp {

// While it lives, operators of the thread that made it are observed. Several may live. One that is destroyed by another
// thread leaves a callback behind, which finds no owner.
class UseObserver final {
 public:
  UseObserver();
  ~UseObserver();
  UseObserver(const UseObserver&) = delete;
  UseObserver& operator=(const UseObserver&) = delete;

  // True if it observes the calling thread.
  bool is_mine() const { return thread_ == std::this_thread::get_id(); }

 private:
  const std::thread::id thread_ = std::this_thread::get_id();
  const at::CallbackHandle handle_;
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_USE_OBSERVER_H_
