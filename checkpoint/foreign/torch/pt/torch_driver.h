// SPDX-License-Identifier: Apache-2.0
//
// The driver for torch.save's formats: a .pt file, old or new, or a directory of them (pytorch_model.bin, an index of
// several, or a file of each rank).
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_DRIVER_H_

#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

struct TorchWriteOptions;

// One file that torch.load(weights_only=True) reads. No options.
struct TorchTarget {};

const FormatDriver& TorchDriver();
std::unique_ptr<FormatWriter> WriterFor(const TorchTarget& target);

// The input of every writer of PyTorch's formats: the common options for WriteTorchFile and WriteDcpDirectory, and
// FormatWriter::Fit, whose notes name the parts of `contents` that these formats leave out.
TorchWriteOptions TorchOptionsOf(const FormatWriteOptions& options);
std::vector<std::string> FitTorch(FormatContents& contents);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TORCH_DRIVER_H_
