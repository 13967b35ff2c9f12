// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/transport.h"

#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::Status Transport::ExchangeInSteps(const Pipeline& pipeline, const CollectiveId& what, absl::Duration timeout) {
  for (int64_t step = 0; step < pipeline.steps; ++step) {
    FSDP_ASSIGN_OR_RETURN(const Messages messages, pipeline.begin(step));
    FSDP_RETURN_IF_ERROR(Exchange(messages.sends, messages.receives, what, timeout));
    FSDP_RETURN_IF_ERROR(pipeline.end(step));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
