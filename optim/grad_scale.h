// SPDX-License-Identifier: Apache-2.0
//
// GradScale: a gradient scaler's scale and how it changes, in one place for the host (fsdp/sharded_grad_scaler.h) and
// for the kernel of a device that decides itself (UpdateOps::UpdateGradScale), which so give the same bits.
#ifndef FSDP_OPTIM_GRAD_SCALE_H_
#define FSDP_OPTIM_GRAD_SCALE_H_

#include <cstdint>

namespace fsdp {

// Copied to and from devices byte by byte.
struct GradScale {
  double scale = 0;
  double growth_factor = 0;
  double backoff_factor = 0;
  int32_t growth_interval = 0;
  int32_t growth_tracker = 0;  // steps without overflow since the scale changed
  float rounded = 0;           // the scale, for the gradient of the loss
  float inverse = 0;           // 1 / scale, for the gradients
  int32_t overflowed = 0;      // 1: the last step did, and was left out
  int32_t unused = 0;

  // What follows from the scale.
  constexpr void Derive() {
    rounded = static_cast<float>(scale);
    inverse = static_cast<float>(1.0 / scale);
  }

  // Lowers the scale after a step that overflowed; raises it after growth_interval steps that did not.
  constexpr void Advance(bool overflows) {
    overflowed = overflows ? 1 : 0;
    if (overflows) {
      scale *= backoff_factor;
      growth_tracker = 0;
    } else if (++growth_tracker == growth_interval) {
      scale *= growth_factor;
      growth_tracker = 0;
    }
    Derive();
  }
};
static_assert(sizeof(GradScale) == 48);

}  // namespace fsdp

#endif  // FSDP_OPTIM_GRAD_SCALE_H_
