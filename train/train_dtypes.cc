// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/train_dtypes.h"

#include <optional>
#include <string>

#include "absl/flags/flag.h"
#include "fsdp/tensor/float_dtype.h"
#include "fsdp/train/train_flags.h"

namespace fsdp {

void NameTrainDTypes() {
  for (absl::Flag<std::string>* flag : {&FLAGS_dtype, &FLAGS_reduce_dtype, &FLAGS_buffer_dtype}) {
    absl::SetFlag(flag, FloatDTypeName(absl::GetFlag(*flag)));
  }
  for (absl::Flag<std::optional<std::string>>* flag : {&FLAGS_param_dtype, &FLAGS_output_dtype}) {
    const std::optional<std::string> given = absl::GetFlag(*flag);
    if (given.has_value()) absl::SetFlag(flag, FloatDTypeName(*given));
  }
}

}  // namespace fsdp
