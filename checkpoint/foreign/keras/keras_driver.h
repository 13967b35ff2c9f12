// SPDX-License-Identifier: Apache-2.0
//
// KerasDriver: the files of Keras 3 (keras_source.h). Read only.
#ifndef FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_DRIVER_H_

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

const FormatDriver& KerasDriver();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_DRIVER_H_
