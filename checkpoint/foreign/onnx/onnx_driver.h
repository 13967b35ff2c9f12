// SPDX-License-Identifier: Apache-2.0
//
// OnnxDriver: models of ONNX (onnx_source.h). Read only.
#ifndef FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_DRIVER_H_

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

const FormatDriver& OnnxDriver();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_DRIVER_H_
