// SPDX-License-Identifier: Apache-2.0
//
// BackwardOnCaller: while it lives, a backward that its thread calls runs on that thread. By default autograd runs work
// on a GPU on one thread for each GPU of the process. If ranks are threads that share a GPU, the hook of one rank would
// then wait, in a collective, for the hook of another rank that the same thread is to run later.
#ifndef FSDP_LIBTORCH_BACKWARD_THREAD_H_
#define FSDP_LIBTORCH_BACKWARD_THREAD_H_

#include <thread>

namespace fsdp {

// Several may live on a thread. The last one restores the setting from before the first, unless another thread destroys
// it: the setting then stays.
class BackwardOnCaller final {
 public:
  BackwardOnCaller();
  ~BackwardOnCaller();
  BackwardOnCaller(const BackwardOnCaller&) = delete;
  BackwardOnCaller& operator=(const BackwardOnCaller&) = delete;

  // True if the calling thread made it.
  bool is_mine() const { return thread_ == std::this_thread::get_id(); }

 private:
  const std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_BACKWARD_THREAD_H_
