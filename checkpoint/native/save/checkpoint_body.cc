// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/save/checkpoint_body.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/tree/flat_parts.h"

namespace fsdp {

// Two nonces, because a save id has 128 bits: it must differ between all saves ever made, a nonce only between
// processes that write into one directory.
std::string NewSaveId() { return absl::StrCat(NewNonce(), NewNonce()); }

absl::Status CheckParityCount(int parity, StateDictType type) {
  const bool is_possible = parity > 0 && parity <= kMaxParityFiles && type != StateDictType::kFull;
  if (parity == 0 || is_possible) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("parity is ", parity, ", expected 0 to ", kMaxParityFiles,
                                                 ", and 0 for a full checkpoint, which has no rank files"));
}

absl::Status ExplainNotFound(const BodyContext& context, const absl::Status& status) {
  if (!absl::IsNotFound(status) || context.root.empty()) return status;
  return absl::FailedPreconditionError(absl::StrCat(std::string(status.message()), "; ", context.root,
                                                    " must be a directory that all hosts share under this name"));
}

Manifest NewManifest(const BodyContext& context, StoredValues values) {
  Manifest manifest;
  static_cast<StoredValues&>(manifest) = std::move(values);
  manifest.save = context.save;
  manifest.units = context.units;
  return manifest;
}

absl::StatusOr<TreeFile> RankTree(const BodyContext& context, int writer, RecordHeader header,
                                  std::vector<TreeFile::TensorPart> tensors) {
  TreeFile tree;
  tree.name = RankFileName(writer, context.save.writers);
  tree.tensors = std::move(tensors);
  tree.laid_out = context.laid_out;
  // Texts, attributes and units are equal on all ranks, so only the first file stores them.
  if (writer == 0) {
    tree.texts = context.texts;
  } else {
    header.save.attributes.clear();
    header.units.clear();
  }
  tree.record = std::move(header);
  if (context.save.type == StateDictType::kLocal) FSDP_RETURN_IF_ERROR(AddFlatParts(context.units, tree));
  return tree;
}

}  // namespace fsdp
