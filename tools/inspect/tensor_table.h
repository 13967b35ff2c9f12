// SPDX-License-Identifier: Apache-2.0
//
// The table of tensors of a page about a checkpoint: by layer, in the order of a model, each parameter followed by the
// optimizer's states of it, then the extra values. Pure.
#ifndef FSDP_TOOLS_INSPECT_TENSOR_TABLE_H_
#define FSDP_TOOLS_INSPECT_TENSOR_TABLE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/tools/inspect/checkpoint_layers.h"
#include "fsdp/tools/page/html.h"

namespace fsdp {

// The most tensors with a row: the largest ones.
inline constexpr size_t kMaxTensorRows = 400;

// The columns of the table, whose titles ColumnLabels needs.
std::vector<TableColumn> TensorColumns(const Manifest& manifest);

// The section with the table. `statistics` may lack tensors.
std::string TensorsSection(const Manifest& manifest, const TensorStatistics& statistics);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_TENSOR_TABLE_H_
