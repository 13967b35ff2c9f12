// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/orbax_item.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/directory_values.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_values.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_paths.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/stored_values.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxTreeBytes = int64_t{1} << 30;
constexpr size_t kMostNamed = 20;  // of things that are left out
constexpr char kTextsName[] = "_strings.json";
constexpr char kAggregateName[] = "checkpoint";  // msgpack

// Reads the JSON file `name` of `directory` and parses it by `parse`; errors name the file.
template <typename Parse>
auto ReadJson(const std::string& directory, const std::string& name, const Parse& parse)
    -> decltype(parse(std::declval<std::string&>())) {
  const std::string path = JoinPath(directory, name);
  FSDP_ASSIGN_OR_RETURN(std::string text, ReadFile(PosixFileSystem(), path, kMaxTreeBytes));
  auto parsed = parse(text);
  if (parsed.ok()) return parsed;
  FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(path));
  return Annotate(parsed.status(), path);
}

void Add(std::vector<std::string>& list, const std::string& what) {
  // Bounded, because the list becomes a message.
  if (list.size() < kMostNamed) list.push_back(what);
}

// The texts of an item, found by their names. A view would scan the whole object for each.
class Texts {
 public:
  explicit Texts(const JsonView& root) : root_(root) {}

  // The value at `name`: a JSON pointer, so that slashes lead into objects.
  std::optional<std::string> At(const std::string& name) {
    JsonView at = root_;
    for (const absl::string_view key : absl::StrSplit(name, '/')) {
      const Members& members = MembersOf(at);
      const auto member = members.find(std::string(key));
      if (member == members.end()) return std::nullopt;
      at = member->second;
    }
    return at.string();
  }

 private:
  using Members = absl::flat_hash_map<std::string, JsonView>;

  const Members& MembersOf(const JsonView& object) {
    const auto [at, is_new] = members_.try_emplace(object.text().data());
    if (is_new && object.is_object()) {
      for (auto& [name, value] : object.members()) at->second.emplace(std::move(name), value);
    }
    return at->second;
  }

  const JsonView root_;
  std::map<const char*, Members> members_;  // by the place of an object in the text
};

}  // namespace

// First what was saved, by _METADATA, then what is stored; a difference of the two is damage, or a value that this
// reader leaves out by name.
absl::StatusOr<OrbaxItem> OrbaxItem::Open(const std::string& directory, int64_t first_number, ChunkMemory& memory) {
  OrbaxItem item(directory);
  FSDP_RETURN_IF_ERROR(item.ReadTree());
  FSDP_RETURN_IF_ERROR(item.OpenValues());
  absl::Status status = item.OpenArrays(first_number, memory);
  if (status.ok() && item.tree_) status = item.CheckLeaves();
  if (!status.ok()) return Annotate(status, directory);
  FSDP_RETURN_IF_ERROR(item.ReadTexts());
  return item;
}

std::vector<std::string> OrbaxItem::files() const {
  std::vector<std::string> paths;
  for (const std::string& name : json_files_) paths.push_back(JoinPath(directory_, name));
  for (const std::string& name : values_->files()) paths.push_back(JoinPath(directory_, name));
  return paths;
}

absl::Status OrbaxItem::ReadTree() {
  FSDP_ASSIGN_OR_RETURN(const bool has_tree, IsThere(JoinPath(directory_, kOrbaxTreeName)));
  FSDP_ASSIGN_OR_RETURN(const bool has_aggregate, IsThere(JoinPath(directory_, kAggregateName)));
  if (!has_tree) {
    // Without it nothing says whether an array is missing. Early versions have the tree in the aggregate.
    for (const char* name : {kOrbaxStepName, "_sharding", "array_metadatas"}) {
      FSDP_ASSIGN_OR_RETURN(const bool is_of_orbax, IsThere(JoinPath(directory_, name)));
      if (!is_of_orbax || has_aggregate) continue;
      return absl::DataLossError(absl::StrCat(JoinPath(directory_, kOrbaxTreeName), " is missing, but there is ", name,
                                              ": copy all of the checkpoint"));
    }
    if (has_aggregate) Add(left_out_, "\"checkpoint\" (values in msgpack of an early version, which is not read)");
    return absl::OkStatus();
  }
  FSDP_ASSIGN_OR_RETURN(tree_,
                        ReadJson(directory_, kOrbaxTreeName, [](std::string& text) { return ParseOrbaxTree(text); }));
  json_files_.push_back(kOrbaxTreeName);
  return absl::OkStatus();
}

// Both stores can be in one directory if a save was repeated with other options. Then only _METADATA says which is
// meant.
absl::Status OrbaxItem::OpenValues() {
  FSDP_ASSIGN_OR_RETURN(const bool has_manifest, IsThere(JoinPath(directory_, kOcdbtManifestName)));
  if (tree_ && tree_->use_ocdbt && !has_manifest) {
    return absl::DataLossError(absl::StrCat(JoinPath(directory_, kOcdbtManifestName), " is missing, but ",
                                            kOrbaxTreeName, " says that the arrays are in its database"));
  }
  if (tree_ && !tree_->use_ocdbt && has_manifest) {
    return absl::DataLossError(absl::StrCat(JoinPath(directory_, kOcdbtManifestName), " is there, but ", kOrbaxTreeName,
                                            " says that the arrays are in folders"));
  }
  FSDP_ASSIGN_OR_RETURN(values_, has_manifest ? OpenOcdbtValues(directory_) : OpenDirectoryValues(directory_));
  return absl::OkStatus();
}

// Numbers are handed out across all items, since the caches of chunks are shared by them.
absl::Status OrbaxItem::OpenArrays(int64_t first_number, ChunkMemory& memory) {
  absl::flat_hash_set<std::string> leaves;
  for (const OrbaxLeaf& leaf : tree_ ? tree_->leaves : std::vector<OrbaxLeaf>()) {
    if (leaf.kind == OrbaxLeaf::Kind::kArray) leaves.insert(leaf.name);
  }
  for (const std::string& name : values_->arrays()) {
    if (tree_ && leaves.count(name) == 0) {
      Add(left_out_, absl::StrCat(Quote(name), " (an array that is no leaf of ", kOrbaxTreeName, ")"));
      continue;
    }
    FSDP_ASSIGN_OR_RETURN(ZarrArray array, ZarrArray::Open(*values_, name, first_number++, memory));
    if (!array.metadata().dtype) {
      Add(unreadable_, absl::StrCat(Quote(name), " (dtype ", Printable(array.metadata().dtype_name), ")"));
      continue;
    }
    FSDP_RETURN_IF_ERROR(CheckChunks(array));
    arrays_.push_back(std::move(array));
  }
  end_number_ = first_number;
  return absl::OkStatus();
}

// Newer Orbax stores every chunk, so that a missing one is damage; older versions and zarr leave out chunks of fill
// values, and nothing tells these from lost ones but the note.
absl::Status OrbaxItem::CheckChunks(ZarrArray& array) {
  FSDP_RETURN_IF_ERROR(array.CountMissing());
  const int64_t missing = array.missing();
  if (tree_ && tree_->stores_every_chunk) {
    array.RequireAllChunks();
    if (missing == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(Quote(array.name()), ": ", missing, " of its chunks are missing, but ",
                                            kOrbaxTreeName, " says that every chunk is stored"));
  }
  if (missing > 0) {
    Add(notes_, absl::StrCat(Quote(array.name()), ": ", missing,
                             " of its chunks are not stored, so their elements are the fill value"));
  }
  return absl::OkStatus();
}

// Every leaf must be stored: an array that is lost as a whole is no array of the store any more.
absl::Status OrbaxItem::CheckLeaves() {
  const std::vector<std::string>& stored = values_->arrays();
  for (const OrbaxLeaf& leaf : tree_->leaves) {
    const bool is_stored = std::binary_search(stored.begin(), stored.end(), leaf.name);
    if (leaf.kind == OrbaxLeaf::Kind::kArray && !is_stored) {
      return absl::DataLossError(
          absl::StrCat("array ", Quote(leaf.name), " is missing, which is a leaf of ", kOrbaxTreeName));
    }
    if (leaf.kind == OrbaxLeaf::Kind::kAggregated) {
      Add(unreadable_, absl::StrCat(Quote(leaf.name), " (in the msgpack file \"", kAggregateName, "\")"));
    }
  }
  return absl::OkStatus();
}

// A view into the text, which moves into this function with the file's contents.
absl::Status OrbaxItem::ReadTexts() {
  const auto is_text = [](const OrbaxLeaf& leaf) { return leaf.kind == OrbaxLeaf::Kind::kText; };
  if (!tree_ || std::none_of(tree_->leaves.begin(), tree_->leaves.end(), is_text)) return absl::OkStatus();
  std::string text;
  FSDP_ASSIGN_OR_RETURN(const JsonView texts, ReadJson(directory_, kTextsName, [&](std::string& json) {
                          text = std::move(json);
                          return JsonView::Parse(text);
                        }));
  Texts found(texts);
  for (const OrbaxLeaf& leaf : tree_->leaves) {
    if (!is_text(leaf)) continue;
    std::optional<std::string> value = found.At(leaf.name);
    if (!value) {
      return absl::DataLossError(absl::StrCat(JoinPath(directory_, kTextsName), ": text ", Quote(leaf.name),
                                              " is missing, which is a leaf of ", kOrbaxTreeName));
    }
    texts_.emplace_back(leaf.name, *std::move(value));
  }
  json_files_.push_back(kTextsName);
  return absl::OkStatus();
}

}  // namespace fsdp
