// SPDX-License-Identifier: Apache-2.0
//
// UnshardHandle: an all-gather that FsdpModule::UnshardAsync issued. Forward waits for it by itself; a program that
// reads the parameters calls Wait. Valid as long as the module.
#ifndef FSDP_FSDP_UNSHARD_HANDLE_H_
#define FSDP_FSDP_UNSHARD_HANDLE_H_

#include <functional>
#include <utility>

#include "absl/status/status.h"

namespace fsdp {

class UnshardHandle final {
 public:
  // Waits for nothing: the unit was unsharded, or has no parameters.
  UnshardHandle() = default;
  explicit UnshardHandle(std::function<absl::Status()> wait) : wait_(std::move(wait)) {}

  // Makes the compute stream wait for the all-gather and binds the unit's Parameters. Waiting again does nothing.
  absl::Status Wait() {
    const std::function<absl::Status()> wait = std::exchange(wait_, nullptr);
    return wait == nullptr ? absl::OkStatus() : wait();
  }

 private:
  std::function<absl::Status()> wait_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNSHARD_HANDLE_H_
