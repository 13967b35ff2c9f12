// SPDX-License-Identifier: Apache-2.0
//
// A marked module that no model took would compute as a plain one, without sharding and without reductions. So the mark
// installs hooks that refuse forward. The model's executor replaces them.
#include "fsdp/fsdp/wrap/manual_wrap.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::Status WrapModule(Module& module, const UnitOverrides& overrides) {
  const std::string type_name(module.type_name());
  if (!module.has_forward()) {
    return absl::InvalidArgumentError(
        absl::StrCat("WrapModule of a ", type_name, ": expected a module with a forward; wrap its children"));
  }
  if (module.hooks() != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("WrapModule of a ", type_name, " that has been wrapped already: expected one call per module"));
  }
  FSDP_RETURN_IF_ERROR(Validate(overrides));
  auto mark = std::make_shared<ManualWrap>(overrides);
  module.set_extension(mark);
  module.set_hooks(mark->hooks());
  return absl::OkStatus();
}

const ManualWrap* ManualWrap::Of(const Module& module) { return dynamic_cast<const ManualWrap*>(module.extension()); }

absl::Status ManualWrap::PreForward(Module& module, absl::Span<Tensor>, Tape&) {
  return absl::FailedPreconditionError(absl::StrCat(
      "forward of a ", std::string(module.type_name()),
      " that WrapModule marked, and no model has: make one with FullyShardedDataParallel::Wrap of a module "
      "around it, or WrapRootsBelow"));
}

absl::Status ManualWrap::PostForward(Module&, absl::Span<Tensor>, Tape&) { return absl::OkStatus(); }
absl::Status ManualWrap::PreBackward(Module&, absl::Span<Tensor>, Tape&) { return absl::OkStatus(); }
absl::Status ManualWrap::PostBackward(Module&, absl::Span<Tensor>, Tape&) { return absl::OkStatus(); }

}  // namespace fsdp
