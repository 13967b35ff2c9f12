// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_plan.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/foreign/zip/file_slice.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/rank_file_names.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxMetadataBytes = int64_t{1} << 30;
constexpr size_t kMaxFamilies = 256;
constexpr char kUnfinished[] = "tmp_";

// Two ways to a plan. With metadata.pkl it is the list of files, and each one must be there. Without it the names must
// do: ITEM_RANK.ENDING of torch_checkpointing, or one torch file per rank as FSDP2's users save them. Names are
// ambiguous ("epoch_0.pt" is no rank), so the second way also wants DTensors in a file, or a model and other items.
// Files whose names differ only in the rank.
struct Family {
  std::string item;
  std::string ending;                // ".pt"
  std::map<int, std::string> names;  // by rank

  bool is_torch() const { return ending == ".pt"; }
  bool is_complete(int world_size) const {
    return static_cast<int>(names.size()) == world_size && names.rbegin()->first == world_size - 1;
  }
};

// "optimizer_12.pt" is rank 12 of "optimizer" with ".pt".
struct RankName {
  std::string item;
  int rank = 0;
  std::string ending;
};

// Read from the end: an item's own name may have underscores and digits.
std::optional<RankName> ParseRankName(const std::string& name) {
  constexpr size_t kMaxDigits = 6;
  const size_t dot = name.rfind('.');
  if (dot == name.npos || dot + 1 == name.size()) return std::nullopt;
  // The rank has at least one digit, and a name before it.
  const size_t line = name.find_last_not_of("0123456789", dot - 1);
  if (line == name.npos || line == 0 || name[line] != '_' || line + 1 == dot || dot - line - 1 > kMaxDigits) {
    return std::nullopt;
  }
  RankName parsed = {name.substr(0, line), 0, name.substr(dot)};
  const std::string digits = name.substr(line + 1, dot - line - 1);
  if (digits.size() > 1 && digits[0] == '0') return std::nullopt;  // Python writes none
  return absl::SimpleAtoi(digits, &parsed.rank) ? std::make_optional(std::move(parsed)) : std::nullopt;
}

// In the order of the names. `taken`: files that are not looked at.
std::vector<Family> FamiliesOf(const std::vector<std::string>& names, const std::set<std::string>& taken) {
  std::map<std::pair<std::string, std::string>, Family> families;
  for (const std::string& name : names) {
    if (taken.count(name) != 0 || name[0] == '.') continue;
    const std::optional<RankName> parsed = ParseRankName(name);
    if (!parsed || families.size() == kMaxFamilies) continue;
    Family& family = families[{parsed->item, parsed->ending}];
    family.item = parsed->item;
    family.ending = parsed->ending;
    family.names[parsed->rank] = name;
  }
  std::vector<Family> list;
  for (auto& [key, family] : families) list.push_back(std::move(family));
  return list;
}

ItemFormat FormatOf(const Family& family) {
  if (family.is_torch()) return ItemFormat::kTorch;
  if (family.ending == ".json") return ItemFormat::kJson;
  return family.ending == ".safetensors" ? ItemFormat::kSafetensors : ItemFormat::kRaw;
}

// False for names in which the number usually counts checkpoints of a series: "epoch_0.pt".
bool MayCountRanks(const std::string& item) {
  return !RankFileNames({absl::StrCat(item, "_0.pt"), absl::StrCat(item, "_1.pt")}).empty();
}

// Opening a file is the only proof, but this is asked of every directory with torch files.
// Looks into the first few: there may be any number of torch files.
bool HasDTensorsOf(const std::string& directory, const std::vector<Family>& families) {
  constexpr int kMostOpened = 16;
  int opened = 0;
  return std::any_of(families.begin(), families.end(), [&](const Family& family) {
    const bool may_be = family.is_torch() && family.names.begin()->first == 0 && MayCountRanks(family.item);
    return may_be && opened++ < kMostOpened && HasDTensors(JoinPath(directory, family.names.begin()->second));
  });
}

// What a directory without metadata.pkl is.
struct Unlisted {
  std::vector<Family> families;           // of torch_checkpointing
  std::vector<std::string> one_per_rank;  // else a torch file of each rank
  bool has_dtensors = false;

  bool is_checkpoint() const {
    if (!one_per_rank.empty()) return has_dtensors;
    const auto torch =
        std::count_if(families.begin(), families.end(), [](const Family& family) { return family.is_torch(); });
    const bool has_model = std::any_of(families.begin(), families.end(), [](const Family& family) {
      return family.is_torch() && family.item == "model" && family.names.begin()->first == 0;
    });
    return torch > 0 && (has_dtensors || (has_model && torch > 1));
  }
};

Unlisted LookAt(const std::string& directory, const std::vector<std::string>& names) {
  Unlisted found;
  found.families = FamiliesOf(names, {});
  std::vector<std::string> torch;
  std::copy_if(names.begin(), names.end(), std::back_inserter(torch), [](const std::string& name) {
    return absl::EndsWith(name, ".pt") || absl::EndsWith(name, ".pth") || absl::EndsWith(name, ".bin");
  });
  const auto torch_families = std::count_if(found.families.begin(), found.families.end(),
                                            [](const Family& family) { return family.is_torch(); });
  // One item next to items in other formats has the names of torch_checkpointing.
  const bool is_one_item = torch_families == 0 || (torch_families == 1 && found.families.size() == 1);
  if (is_one_item) found.one_per_rank = RankFileNames(torch);
  found.has_dtensors = found.one_per_rank.empty() ? HasDTensorsOf(directory, found.families)
                                                  : HasDTensors(JoinPath(directory, found.one_per_rank[0]));
  return found;
}

bool HasMetadata(const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), kItemsMetadataName) != names.end();
}

absl::StatusOr<std::string> ReadHead(const std::string& path) {
  constexpr int64_t kHeadBytes = 4096;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, PosixFileSystem().Open(path));
  FSDP_ASSIGN_OR_RETURN(const FileSlice slice, FileSlice::Whole(*file));
  return slice.ReadText(0, std::min(slice.nbytes, kHeadBytes));
}

// Adds a family as an item, with the files of all ranks or only of rank 0.
absl::Status AddFamily(const std::string& directory, const Family& family, ItemPlan& plan) {
  if (family.names.rbegin()->first >= plan.world_size) {
    return absl::DataLossError(absl::StrCat(JoinPath(directory, family.names.rbegin()->second), " is of a rank beyond ",
                                            "the ", plan.world_size, " that the other files are of: remove what is of ",
                                            "another save"));
  }
  // An item of rank 0 only is one that all ranks share, such as the step. Any other gap is a file that was lost.
  const bool is_of_rank_0 = family.names.size() == 1 && family.names.begin()->first == 0;
  if (!family.is_complete(plan.world_size) && !is_of_rank_0) {
    int missing = 0;
    while (family.names.count(missing) != 0) ++missing;
    return absl::DataLossError(absl::StrCat(directory, " has no ", family.item, "_", missing, family.ending, ", but ",
                                            family.names.rbegin()->second, ": get the files of all ", plan.world_size,
                                            " ranks"));
  }
  PlannedItem& item = plan.items.emplace_back();
  item.name = family.item;
  item.files.resize(plan.world_size);
  for (const auto& [rank, name] : family.names) item.files[rank] = ItemLayout{name, FormatOf(family)};
  return absl::OkStatus();
}

// The part that no name explains: files of weights one directory further down.
absl::Status CheckNothingIsHidden(const std::string& directory, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(JoinPath(directory, name)));
    if (type != fs::file_type::directory) continue;
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> inner, PosixFileSystem().List(JoinPath(directory, name)));
    const auto weights =
        std::find_if(inner.begin(), inner.end(), [](const std::string& file) { return IsWeightFileName(file); });
    if (weights == inner.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat(directory, " has files of weights in ", name, "/, such as ",
                                                   Printable(*weights), ", and no ", kItemsMetadataName,
                                                   " that says which parts they are: get it, or move them away"));
  }
  return absl::OkStatus();
}

absl::Status PlanUnlisted(const std::string& directory, const std::vector<std::string>& names, ItemPlan& plan) {
  const Unlisted found = LookAt(directory, names);
  plan.has_dtensors = found.has_dtensors;
  FSDP_RETURN_IF_ERROR(CheckNothingIsHidden(directory, names));
  if (!found.one_per_rank.empty()) {
    plan.is_one_dict = true;
    plan.world_size = static_cast<int>(found.one_per_rank.size());
    PlannedItem& item = plan.items.emplace_back();
    item.name = "model";
    for (const std::string& name : found.one_per_rank) item.files.emplace_back(ItemLayout{name, ItemFormat::kTorch});
    return absl::OkStatus();
  }
  // The number of ranks is one more than the highest in a name: torch files only, since others may count something
  // else.
  int last = 0;
  size_t torch = 0;
  for (const Family& family : found.families) {
    if (!family.is_torch()) continue;
    ++torch;
    last = std::max(last, family.names.rbegin()->first);
  }
  if (last >= kMaxItemRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, " has a file of rank ", last, ", more than ", kMaxItemRanks));
  }
  plan.world_size = last + 1;
  for (const Family& family : found.families) {
    // Without metadata.pkl nothing says how safetensors files are divided.
    if (FormatOf(family) == ItemFormat::kSafetensors && plan.world_size > 1) {
      return absl::InvalidArgumentError(absl::StrCat(directory, " has ", family.names.begin()->second,
                                                     ", which is a part of a model, and no ", kItemsMetadataName,
                                                     " that says which: get it, or move such files away"));
    }
    FSDP_RETURN_IF_ERROR(AddFamily(directory, family, plan));
  }
  plan.is_one_dict = torch == 1 && plan.items.size() == 1;
  return absl::OkStatus();
}

// Files that metadata.pkl does not name can still be items, if they were saved without tensors; one with the name of an
// item that it does name is a leftover.
absl::Status PlanListed(const std::string& directory, const std::vector<std::string>& names, ItemPlan& plan) {
  const std::string path = JoinPath(directory, kItemsMetadataName);
  {
    FSDP_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(PosixFileSystem(), path, kMaxMetadataBytes));
    absl::StatusOr<ItemsMetadata> metadata = ParseItemsMetadata(bytes);
    if (!metadata.ok()) FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(path));
    if (!metadata.ok()) return Annotate(metadata.status(), path);
    plan.metadata = *std::move(metadata);
  }
  plan.has_metadata = true;
  plan.has_dtensors = true;
  plan.world_size = plan.metadata.world_size;
  std::set<std::string> taken;
  std::set<std::string> known;
  for (size_t i = 0; i < plan.metadata.items.size(); ++i) {
    const ItemMetadata& metadata = plan.metadata.items[i];
    PlannedItem& item = plan.items.emplace_back();
    item.name = metadata.name;
    item.metadata = static_cast<int>(i);
    known.insert(item.name);
    for (int rank = 0; rank < plan.world_size; ++rank) {
      taken.insert(item.files.emplace_back(metadata.LayoutOf(rank))->file);
    }
  }
  for (const Family& family : FamiliesOf(names, taken)) {
    // A leftover of another save with the name of an item; TensorSource::left_out() names it.
    if (known.count(family.item) == 0) FSDP_RETURN_IF_ERROR(AddFamily(directory, family, plan));
  }
  return absl::OkStatus();
}

// True if `name` is the file of one rank of an item that several ranks have.
bool IsPartOf(const ItemPlan& plan, const std::string& name) {
  return std::any_of(plan.items.begin(), plan.items.end(), [&](const PlannedItem& item) {
    const auto is_file = [&](const auto& file) { return file && file->file == name; };
    return item.files.size() > 1 && std::any_of(item.files.begin(), item.files.end(), is_file);
  });
}

}  // namespace

absl::StatusOr<bool> IsItemDirectory(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(directory));
  const bool has_metadata = HasMetadata(names);
  if (has_metadata) {
    const absl::StatusOr<std::string> head = ReadHead(JoinPath(directory, kItemsMetadataName));
    if (head.ok() && IsItemsMetadata(*head)) return true;
    // An error of the disk does not say that it is another program's file.
    if (!head.ok() && !absl::IsNotFound(head.status()) && !absl::IsInvalidArgument(head.status())) return head.status();
  }
  // The name decides in vain if nothing can be an item: most directories end here.
  const bool may_be = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return absl::EndsWith(name, ".pt") || absl::EndsWith(name, ".pth") || absl::EndsWith(name, ".bin");
  });
  return may_be && LookAt(directory, names).is_checkpoint();
}

absl::StatusOr<ItemPlan> PlanItems(const std::string& directory) {
  const std::string name = SplitPath(directory).name;
  if (name.rfind(kUnfinished, 0) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, " is an unfinished save of torch_checkpointing, which it renames to ",
                     name.substr(sizeof(kUnfinished) - 1), " at the end: give a save that ended"));
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(directory));
  ItemPlan plan;
  FSDP_RETURN_IF_ERROR(HasMetadata(names) ? PlanListed(directory, names, plan) : PlanUnlisted(directory, names, plan));
  if (plan.items.empty()) return absl::InvalidArgumentError(absl::StrCat(directory, " has no files of ranks"));
  return plan;
}

std::string ItemDirectoryOf(const std::string& file) {
  constexpr int kMostLevels = 4;
  PathParts parts = SplitPath(file);
  for (int level = 0; level < kMostLevels; ++level) {
    const std::string& directory = parts.directory;
    const absl::StatusOr<std::string> head = ReadHead(JoinPath(directory, kItemsMetadataName));
    if (head.ok() && IsItemsMetadata(*head)) {
      const absl::StatusOr<ItemPlan> plan = PlanItems(directory);
      return plan.ok() && IsPartOf(*plan, parts.name) ? directory : "";
    }
    std::error_code ignored;
    const PathParts above = SplitPath(directory == "." ? fs::current_path(ignored).string() : directory);
    if (above.name.empty() || above.name == "..") break;
    parts = {above.directory, JoinPath(above.name, parts.name)};
  }
  return "";
}

}  // namespace fsdp
