// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/orbax_source.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_item.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_names.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_paths.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_tree.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/checkpoint/source/step_counter.h"
#include "fsdp/checkpoint/source/stored_values.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"
#include "fsdp/tensor/convert.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxStepMetadataBytes = int64_t{64} << 20;
constexpr char kCommitName[] = "commit_success.txt";

class OrbaxSource final : public TensorSource {
 public:
  OrbaxSource(std::string path, const TensorSourceOptions& options) : path_(std::move(path)), options_(options) {}

  absl::Status Open() {
    FSDP_RETURN_IF_ERROR(FindStep());
    FSDP_ASSIGN_OR_RETURN(const OrbaxPath kind, OrbaxPathOf(directory_));
    if (kind == OrbaxPath::kItem) {
      FSDP_RETURN_IF_ERROR(AddItem("", directory_));
    } else {
      FSDP_RETURN_IF_ERROR(AddItems());
    }
    FSDP_RETURN_IF_ERROR(NameValues());
    return ReadStep();
  }

  const FormatTraits& traits() const override { return OrbaxTraits(); }
  const StateDict& contents() const override { return contents_; }
  int64_t step() const override { return step_; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::vector<std::string> left_out() const override { return left_out_; }
  const SourceLayout& layout() const override { return layout_; }

  std::vector<std::string> files() const override {
    std::vector<std::string> files = files_;
    for (const Branch& branch : branches_) {
      const std::vector<std::string> more = branch.item.files();
      files.insert(files.end(), more.begin(), more.end());
    }
    return files;
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const ZarrArray* const array, Find(key));
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, array->metadata().shape.numel()));
    auto* const bytes = static_cast<std::byte*>(out);
    absl::Status status = array->Read(interval, bytes);
    if (status.ok() && array->metadata().dtype == DType::kBool) status = CheckBoolBytes(bytes, interval);
    return status.ok() ? status : Annotate(status, absl::StrCat(Describe(key), " of ", directory_));
  }

  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const ZarrArray* const array, Find(key));
    return array->Places(DirectoryOf(*array));
  }

 private:
  // An item and what is put in front of the names in it: "state.", or nothing if it is the only one.
  struct Branch {
    std::string name;
    OrbaxItem item;
  };

  absl::StatusOr<const ZarrArray*> Find(const StateKey& key) const {
    const auto at = arrays_.find(key);
    if (at != arrays_.end()) return at->second;
    return absl::NotFoundError(absl::StrCat(directory_, " holds no ", Describe(key)));
  }

  const std::string& DirectoryOf(const ZarrArray& array) const {
    for (const Branch& branch : branches_) {
      const std::vector<ZarrArray>& arrays = branch.item.arrays();
      if (!arrays.empty() && &array >= arrays.data() && &array <= &arrays.back()) return branch.item.directory();
    }
    return directory_;
  }

  // Sets directory_ and, if folders have it as their name, the step.
  absl::Status FindStep() {
    FSDP_ASSIGN_OR_RETURN(const OrbaxPath kind, OrbaxPathOf(path_));
    directory_ = path_;
    if (kind == OrbaxPath::kRoot) {
      FSDP_ASSIGN_OR_RETURN(OrbaxSteps steps, StepsOfRoot(path_));
      directory_ = JoinPath(path_, steps.newest);
      left_out_ = std::move(steps.left_out);
    }
    std::error_code ignored;
    const fs::path absolute = fs::absolute(directory_, ignored).lexically_normal();
    const PathParts parts = SplitPath(absolute.string());
    if (IsUnfinishedOrbaxName(parts.name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          directory_, " is unfinished: Orbax renames a checkpoint when all of it is written: give an older one"));
    }
    const bool is_in_step = fs::exists(fs::path(parts.directory) / kOrbaxStepName, ignored);
    const std::string name = is_in_step ? SplitPath(parts.directory).name : parts.name;
    step_ = StepOfOrbaxName(name).value_or(-1);
    if (step_ >= 0) step_note_ = absl::StrCat("step ", step_, " is the name of the folder ", Quote(name));
    return absl::OkStatus();
  }

  absl::Status AddItem(const std::string& name, const std::string& directory) {
    int64_t first_number = 0;
    for (const Branch& branch : branches_) first_number += std::ssize(branch.item.arrays());
    FSDP_ASSIGN_OR_RETURN(OrbaxItem item, OrbaxItem::Open(directory, first_number, memory_));
    branches_.push_back({name, std::move(item)});
    return absl::OkStatus();
  }

  // The handlers of the items, by name, of _CHECKPOINT_METADATA; empty if there is no such file.
  absl::StatusOr<std::map<std::string, std::string>> ReadHandlers() {
    const std::string path = JoinPath(directory_, kOrbaxStepName);
    std::map<std::string, std::string> handlers;
    FSDP_ASSIGN_OR_RETURN(const bool is_there, IsThere(path));
    if (!is_there) return handlers;
    FSDP_ASSIGN_OR_RETURN(std::string text, ReadFile(PosixFileSystem(), path, kMaxStepMetadataBytes));
    const absl::StatusOr<JsonView> json = ParseJsonOfPython(text);
    if (!json.ok()) return Annotate(json.status(), path);
    files_.push_back(path);
    const std::optional<JsonView> items = json->Find("item_handlers");
    if (!items || !items->is_object()) return handlers;
    for (const auto& [name, handler] : items->members()) handlers[name] = handler.string().value_or("");
    return handlers;
  }

  // The items of a step: every folder, and nothing that _CHECKPOINT_METADATA names may be missing.
  absl::Status AddItems() {
    FSDP_ASSIGN_OR_RETURN(const auto handlers, ReadHandlers());
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, DirectoriesIn(directory_));
    for (const auto& [name, handler] : handlers) {
      if (std::binary_search(names.begin(), names.end(), name)) continue;
      return absl::DataLossError(
          absl::StrCat(JoinPath(directory_, name), " is missing, but ", kOrbaxStepName, " says that it is an item"));
    }
    for (const std::string& name : names) {
      const std::string directory = JoinPath(directory_, name);
      if (IsUnfinishedOrbaxName(name)) {
        left_out_.push_back(absl::StrCat(Quote(name), " (an unfinished item)"));
        continue;
      }
      FSDP_ASSIGN_OR_RETURN(const OrbaxPath kind, OrbaxPathOf(directory));
      if (kind == OrbaxPath::kItem) {
        FSDP_RETURN_IF_ERROR(AddItem(name, directory));
        continue;
      }
      const auto handler = handlers.find(name);
      FSDP_RETURN_IF_ERROR(AddOther(name, directory, handler == handlers.end() ? "" : handler->second));
    }
    if (branches_.empty()) {
      return absl::DataLossError(absl::StrCat(directory_, " has no item with arrays: expected ", kOrbaxTreeName,
                                              " or an OCDBT database in a folder of it"));
    }
    return absl::OkStatus();
  }

  // An item that is no tree: one file of JSON is an extra value, anything else is left out.
  absl::Status AddOther(const std::string& name, const std::string& directory, const std::string& handler) {
    const bool is_tree = absl::StrContains(handler, "TreeCheckpointHandler") ||
                         absl::StrContains(handler, "StandardCheckpointHandler") ||
                         absl::StrContains(handler, "ArrayCheckpointHandler");
    if (is_tree) {
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
    if (!status.ok() && is_json) return Annotate(status, path);
    if (!status.ok()) {
      left_out_.push_back(absl::StrCat(Quote(name), " (an item that is neither a tree nor one file of JSON)"));
      return absl::OkStatus();
    }
    files_.push_back(path);
    texts_.emplace_back(name, *std::move(text));
    return absl::OkStatus();
  }

  absl::Status NameValues() {
    const bool is_one = branches_.size() == 1;
    std::vector<OrbaxArrayName> names;
    std::vector<const ZarrArray*> arrays;
    std::vector<std::string> items;
    std::vector<std::string> unreadable;
    for (const Branch& branch : branches_) {
      const std::string prefix = is_one ? "" : branch.name + ".";
      if (!is_one) items.push_back(branch.name);
      for (const ZarrArray& array : branch.item.arrays()) {
        names.push_back({prefix + array.name(), array.metadata().shape});
        arrays.push_back(&array);
      }
      for (const auto& [name, text] : branch.item.texts()) texts_.emplace_back(prefix + name, text);
      for (const std::string& what : branch.item.unreadable()) unreadable.push_back(what);
      for (const std::string& what : branch.item.left_out()) left_out_.push_back(what);
    }
    if (!unreadable.empty() && !(options_.skip_links && !arrays.empty())) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory_, ": these values cannot be read: ", absl::StrJoin(unreadable, ", "),
                       arrays.empty() ? "; there is nothing else in it"
                                      : "; set TensorSourceOptions::skip_links to go without them"));
    }
    left_out_.insert(left_out_.end(), unreadable.begin(), unreadable.end());
    absl::StatusOr<OrbaxNames> named = NameOrbaxArrays(names, items);
    if (!named.ok()) return Annotate(named.status(), directory_);
    layout_ = std::move(named->layout);
    for (const size_t counter : named->counters) counters_.push_back({names[counter].name, arrays[counter]});
    for (const Branch& branch : branches_) {
      const std::vector<std::string>& notes = branch.item.notes();
      layout_.notes.insert(layout_.notes.end(), notes.begin(), notes.end());
    }
    return Fill(arrays, std::move(named->keys));
  }

  // The model first, then the optimizer, then the rest.
  absl::Status Fill(const std::vector<const ZarrArray*>& arrays, std::vector<StateKey> keys) {
    contents_.Reserve(keys.size() + texts_.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      const absl::Status is_storable = CheckStateKey(keys[i]);
      if (!is_storable.ok()) return Annotate(is_storable, directory_);
      if (!arrays_.emplace(std::move(keys[i]), arrays[i]).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(directory_, ": two arrays have one name, the second is ", Quote(arrays[i]->name())));
      }
    }
    for (const auto& [key, array] : arrays_) {
      ShardedTensor described;
      described.dtype = *array->metadata().dtype;
      described.shape = array->metadata().shape;
      contents_.Set(key, std::move(described));
    }
    for (auto& [name, text] : texts_) {
      const StateKey key = StateKey::Extra(name);
      FSDP_RETURN_IF_ERROR(CheckStateKey(key));
      FSDP_RETURN_IF_ERROR(CheckUtf8(text, Describe(key)));
      if (contents_.contains(key)) {
        return absl::InvalidArgumentError(absl::StrCat(directory_, ": a text and an array are named ", Quote(name)));
      }
      contents_.Set(key, std::move(text));
    }
    return absl::OkStatus();
  }

  // A folder's name decides; else the best counter of the tree that is a number of steps.
  absl::Status ReadStep() {
    for (const auto& [name, array] : counters_) {
      std::byte bytes[16] = {};
      const absl::Status status = array->Read({0, 1}, bytes);
      if (!status.ok()) return Annotate(status, absl::StrCat("tensor ", Quote(name), " of ", directory_));
      double value = -1;
      if (!Convert(*array->metadata().dtype, bytes, DType::kFloat64, &value, 1).ok()) continue;
      const std::optional<int64_t> counted = StepOfNumber(value);
      if (!counted) continue;
      if (step_ < 0) {
        step_ = *counted;
        step_note_ = absl::StrCat("step ", step_, " is ", Quote(name));
      } else if (step_ != *counted && !IsEpochCounter(name)) {
        absl::StrAppend(&step_note_, ", although ", Quote(name), " in it is ", *counted);
      }
      break;
    }
    if (!step_note_.empty()) layout_.notes.push_back(step_note_);
    return absl::OkStatus();
  }

  const std::string path_;
  const TensorSourceOptions options_;
  std::string directory_;  // what is read: path_, or a step in it
  mutable ChunkMemory memory_;
  std::deque<Branch> branches_;
  std::map<StateKey, const ZarrArray*> arrays_;
  std::vector<std::pair<std::string, std::string>> texts_;  // extra values
  std::vector<std::pair<std::string, const ZarrArray*>> counters_;
  std::vector<std::string> files_;
  StateDict contents_;
  SourceLayout layout_;
  int64_t step_ = -1;
  std::string step_note_;
  std::vector<std::string> left_out_;
  const std::map<std::string, std::string> metadata_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenOrbaxSource(const std::string& path,
                                                              const TensorSourceOptions& options) {
  auto source = std::make_unique<OrbaxSource>(path, options);
  FSDP_RETURN_IF_ERROR(source->Open());
  return source;
}

absl::StatusOr<std::string> ResolveOrbaxPath(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const OrbaxPath kind, OrbaxPathOf(path));
  if (kind != OrbaxPath::kRoot) return path;
  FSDP_ASSIGN_OR_RETURN(const OrbaxSteps steps, StepsOfRoot(path));
  return JoinPath(path, steps.newest);
}

const FormatTraits& OrbaxTraits() {
  static const auto* traits = new FormatTraits{.name = "orbax",
                                               .headline = "an Orbax checkpoint",
                                               .in_directory = "Orbax's _METADATA or manifest.ocdbt",
                                               .file = {}};
  return *traits;
}

}  // namespace fsdp
