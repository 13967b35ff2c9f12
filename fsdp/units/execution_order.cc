// SPDX-License-Identifier: Apache-2.0
//
// In the first forward every rank sends the name of the unit that it is about to run, before it computes, so ranks that
// disagree find out while they can still report it. Later forwards are compared with the first one locally: a round of
// the control plane for every unit of every step would cost more than it finds.
#include "fsdp/fsdp/units/execution_order.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr char kEnd[] = "the end of forward";

}  // namespace

absl::Status ExecutionOrder::Enter(const std::string& unit, std::string* warning) {
  if (in_first_) {
    first_.push_back(unit);
    const absl::Status same = groups_.CheckEqual(unit + "\n", "the next unit");
    if (same.ok()) return same;
    return absl::FailedPreconditionError(absl::StrCat("forward order differs across ranks: ", same.message(),
                                                      "; units must run in one order on all ranks"));
  }
  const std::string& before = at_ < first_.size() ? first_[at_] : kEnd;
  ++at_;
  if (before != unit && !warned_) {
    warned_ = true;
    *warning = absl::StrCat("forward order changed: unit ", unit, " ran instead of ", before,
                            "; all-gathers may come too early or too late, and ranks must change alike");
  }
  return absl::OkStatus();
}

absl::Status ExecutionOrder::EndForward(std::string* warning) {
  FSDP_RETURN_IF_ERROR(Enter(kEnd, warning));
  in_first_ = false;
  at_ = 0;
  return absl::OkStatus();
}

}  // namespace fsdp
