// SPDX-License-Identifier: Apache-2.0
//
// The sections of a page about a checkpoint that have a row for each layer or file: bars of bytes, histograms of
// values, and the optimizer's moments. A section ends with its own </section>. All functions are pure.
#ifndef FSDP_TOOLS_INSPECT_LAYER_SECTIONS_H_
#define FSDP_TOOLS_INSPECT_LAYER_SECTIONS_H_

#include <string>

#include "fsdp/tools/inspect/checkpoint_layers.h"

namespace fsdp {

// Each file with values as a bar of its layers, and the names of the others.
std::string FilesSection(const CheckpointLayers& layers);

// Each layer as a bar: parameters, and the optimizer's state of them.
std::string SizesSection(const CheckpointLayers& layers);

// Each layer as a histogram of its weights. Empty for a checkpoint without floating-point weights.
std::string ValuesSection(const CheckpointLayers& layers);

// The optimizer's states: a histogram of each, then their scales in each layer. Empty without an optimizer.
std::string MomentsSection(const CheckpointLayers& layers);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_LAYER_SECTIONS_H_
