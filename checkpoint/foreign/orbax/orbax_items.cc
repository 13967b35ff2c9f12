// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/orbax_items.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_paths.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_tree.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/stored_values.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxStepMetadataBytes = int64_t{64} << 20;
constexpr char kCommitName[] = "commit_success.txt";

// The handlers whose items are trees of arrays: such an item without arrays is damaged.
bool IsTreeHandler(const std::string& handler) {
  return absl::StrContains(handler, "TreeCheckpointHandler") ||
         absl::StrContains(handler, "StandardCheckpointHandler") ||
         absl::StrContains(handler, "ArrayCheckpointHandler");
}

}  // namespace

absl::StatusOr<OrbaxItems> OrbaxItems::Open(const std::string& directory, ChunkMemory& memory) {
  OrbaxItems items;
  FSDP_ASSIGN_OR_RETURN(const OrbaxPath kind, OrbaxPathOf(directory));
  if (kind == OrbaxPath::kItem) {
    FSDP_RETURN_IF_ERROR(items.AddTree("", directory, memory));
  } else {
    FSDP_RETURN_IF_ERROR(items.AddAll(directory, memory));
  }
  return items;
}

std::vector<std::string> OrbaxItems::files() const {
  std::vector<std::string> files = files_;
  for (const Tree& tree : trees_) {
    const std::vector<std::string> more = tree.item.files();
    files.insert(files.end(), more.begin(), more.end());
  }
  return files;
}

absl::Status OrbaxItems::AddTree(const std::string& name, const std::string& directory, ChunkMemory& memory) {
  const int64_t first_number = trees_.empty() ? 0 : trees_.back().item.end_number();
  FSDP_ASSIGN_OR_RETURN(OrbaxItem item, OrbaxItem::Open(directory, first_number, memory));
  trees_.push_back({name, std::move(item)});
  return absl::OkStatus();
}

// The handlers of the items, by name, of _CHECKPOINT_METADATA; empty if there is no such file.
absl::StatusOr<std::map<std::string, std::string>> OrbaxItems::ReadHandlers(const std::string& directory) {
  const std::string path = JoinPath(directory, kOrbaxStepName);
  std::map<std::string, std::string> handlers;
  FSDP_ASSIGN_OR_RETURN(const bool is_there, IsThere(path));
  if (!is_there) return handlers;
  FSDP_ASSIGN_OR_RETURN(std::string text, ReadFile(PosixFileSystem(), path, kMaxStepMetadataBytes));
  const absl::StatusOr<JsonView> json = ParseJsonOfPython(text);
  if (!json.ok()) return ErrorOfText(Annotate(json.status(), path), path, text);
  files_.push_back(path);
  const std::optional<JsonView> items = json->Find("item_handlers");
  if (!items || !items->is_object()) return handlers;
  for (const auto& [name, handler] : items->members()) handlers[name] = handler.string().value_or("");
  return handlers;
}

// The items of a step: every folder, and nothing that _CHECKPOINT_METADATA names may be missing.
absl::Status OrbaxItems::AddAll(const std::string& directory, ChunkMemory& memory) {
  FSDP_ASSIGN_OR_RETURN(const auto handlers, ReadHandlers(directory));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, DirectoriesIn(directory));
  for (const auto& [name, handler] : handlers) {
    if (handler.empty() || std::binary_search(names.begin(), names.end(), name)) continue;
    return absl::DataLossError(
        absl::StrCat(JoinPath(directory, name), " is missing, but ", kOrbaxStepName, " says that it is an item"));
  }
  for (const std::string& name : names) {
    const std::string folder = JoinPath(directory, name);
    if (IsUnfinishedOrbaxName(name)) {
      left_out_.push_back(absl::StrCat(Quote(name), " (an unfinished item)"));
      continue;
    }
    FSDP_ASSIGN_OR_RETURN(const OrbaxPath kind, OrbaxPathOf(folder));
    if (kind == OrbaxPath::kItem) {
      FSDP_RETURN_IF_ERROR(AddTree(name, folder, memory));
      continue;
    }
    const auto handler = handlers.find(name);
    FSDP_RETURN_IF_ERROR(AddOther(name, folder, handler == handlers.end() ? "" : handler->second));
  }
  // A step with JSON only has no tensors.
  if (trees_.empty()) {
    return absl::DataLossError(absl::StrCat(directory, " has no item with arrays: expected ", kOrbaxTreeName,
                                            " or an OCDBT database in a folder of it"));
  }
  return absl::OkStatus();
}

// An item that is no tree: one file of JSON is an extra value, anything else is left out.
absl::Status OrbaxItems::AddOther(const std::string& name, const std::string& directory, const std::string& handler) {
  if (IsTreeHandler(handler)) {
    return absl::DataLossError(
        absl::StrCat(directory, " has neither ", kOrbaxTreeName, " nor manifest.ocdbt: copy all of the checkpoint"));
  }
  FSDP_ASSIGN_OR_RETURN(std::vector<std::string> names, PosixFileSystem().List(directory));
  names.erase(std::remove(names.begin(), names.end(), kCommitName), names.end());
  const bool is_json = absl::StrContains(handler, "JsonCheckpointHandler");
  if (names.size() != 1) {
    if (is_json) return absl::DataLossError(absl::StrCat(directory, ": expected one file of JSON"));
    left_out_.push_back(absl::StrCat(Quote(name), " (an item that is neither a tree nor one file of JSON)"));
    return absl::OkStatus();
  }
  const std::string path = JoinPath(directory, names[0]);
  absl::StatusOr<std::string> text = ReadFile(PosixFileSystem(), path, kMaxTextBytes);
  std::string parsed = text.value_or("");
  const absl::Status status = text.ok() ? ParseJsonOfPython(parsed).status() : text.status();
  if (text.ok()) FSDP_RETURN_IF_ERROR(CheckIsDownloaded(path, {*text, std::ssize(*text)}));
  if (!status.ok() && is_json) return Annotate(status, path);
  if (!status.ok()) {
    left_out_.push_back(absl::StrCat(Quote(name), " (an item that is neither a tree nor one file of JSON)"));
    return absl::OkStatus();
  }
  files_.push_back(path);
  texts_.emplace_back(name, *std::move(text));
  return absl::OkStatus();
}

}  // namespace fsdp
