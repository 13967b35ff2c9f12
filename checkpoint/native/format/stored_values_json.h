// SPDX-License-Identifier: Apache-2.0
//
// The tensors, texts and units of a manifest or a record, from their JSON, which may be hostile. Names are unique, and
// the bytes of every value are inside an extent of a file. Errors are kDataLoss and name the value, not the text:
// manifest_decode.cc knows it. Pure.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_STORED_VALUES_JSON_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_STORED_VALUES_JSON_H_

#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/native/format/stored_files_json.h"
#include "fsdp/checkpoint/source/decode_budget.h"
#include "fsdp/checkpoint/source/json_view.h"

namespace fsdp {

// Members "tensors" and "texts" of `document`. `values.files` and `index` are as DecodeFiles made them.
absl::Status DecodeValues(const JsonView& document, const FileIndex& index, DecodeBudget& budget, StoredValues& values);

// Member "units" of `document`.
absl::Status DecodeUnits(const JsonView& document, DecodeBudget& budget, std::vector<FlatUnitLayout>& units);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_STORED_VALUES_JSON_H_
