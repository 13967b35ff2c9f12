// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/durable_name.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

absl::Status SyncNameOf(FileSystem& files, const std::string& path) {
  const absl::Status synced = files.SyncDirectory(SplitPath(path).directory);
  if (synced.ok()) return synced;
  return WithMessage(synced, absl::StrCat(path, " is complete, but a power cut may still take its name away: ",
                                          synced.message(), "; run sync to keep it"));
}

}  // namespace fsdp
