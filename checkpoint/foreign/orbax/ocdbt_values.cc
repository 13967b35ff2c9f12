// SPDX-License-Identifier: Apache-2.0
//
// Keys arrive in order, since a B+tree is visited from left to right, and a key that is not behind the one before is
// refused. So the keys of one array are neighbours, its name is kept once, and Find is a binary search. A node refers
// only to nodes of smaller height, and no node may be visited twice, so a hostile tree ends.
#include "fsdp/checkpoint/foreign/orbax/ocdbt_values.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_format.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/open_files.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;
constexpr size_t kNumberedNameBytes = sizeof("manifest.0123456789abcdef") - 1;

// A key: name_of_[name] + rest, and its value.
struct Entry {
  uint64_t offset = 0;  // in the data file, or in inline_
  uint64_t nbytes = 0;
  uint32_t file = 0;  // index in files_; kInline
  uint32_t name = 0;  // index in names_
  uint32_t rest = 0;  // offset in rests_
  uint32_t rest_bytes = 0;
};
constexpr uint32_t kInline = UINT32_MAX;

std::string Range(const OcdbtPlace& place) {
  return absl::StrCat(Printable(place.file), ", bytes ", place.offset, " to ", place.offset + place.nbytes);
}

// The whole B+tree is walked once, when it is opened: its nodes are small next to the values, and only a complete list
// of keys can be compared with what the manifest and _METADATA state. Only a sorted array stays in memory, of entries
// of 32 bytes; the text of keys is shared, since the chunks of one array have one long name before the slash.
class OcdbtValues final : public KeyValues {
 public:
  explicit OcdbtValues(const std::string& directory) : files_open_(directory) {}

  // The manifest states how many keys and bytes of nodes its tree has. A node that was replaced by one of an older
  // version, with a right CRC, is noticed by these sums.
  absl::Status Open() {
    FSDP_ASSIGN_OR_RETURN(const OcdbtManifest manifest, ReadManifest());
    if (manifest.root.nbytes != 0) {
      FSDP_RETURN_IF_ERROR(Visit(manifest.root, manifest.height, "", ""));
    }
    if (entries_.size() != manifest.keys) {
      return absl::DataLossError(
          absl::StrCat(manifest_, ": it has ", manifest.keys, " keys, but its tree has ", entries_.size()));
    }
    if (tree_bytes_ != manifest.tree_bytes) {
      return absl::DataLossError(
          absl::StrCat(manifest_, ": its tree has ", manifest.tree_bytes, " bytes, but its nodes have ", tree_bytes_));
    }
    entries_.shrink_to_fit();
    std::sort(arrays_.begin(), arrays_.end());
    return CheckFiles();
  }

  absl::StatusOr<std::optional<ValuePlace>> Find(const std::string& key) const override {
    const auto at = LowerBound(key);
    if (at == entries_.end() || !IsKey(*at, key)) return std::nullopt;
    if (at->file == kInline) {
      const std::string_view bytes = std::string_view(inline_).substr(at->offset, at->nbytes);
      return ValuePlace{.bytes = bytes, .file = {}, .offset = 0, .nbytes = static_cast<int64_t>(at->nbytes)};
    }
    return ValuePlace{.bytes = {},
                      .file = paths_[at->file],
                      .offset = static_cast<int64_t>(at->offset),
                      .nbytes = static_cast<int64_t>(at->nbytes)};
  }

  absl::Status Read(const ValuePlace& place, int64_t offset, absl::Span<std::byte> out) const override {
    if (place.file.empty()) {
      if (offset > place.nbytes || static_cast<int64_t>(out.size()) > place.nbytes - offset) {
        return absl::DataLossError("a value in a B+tree node is shorter than what is wanted of it");
      }
      std::copy_n(reinterpret_cast<const std::byte*>(place.bytes.data()) + offset, out.size(), out.data());
      return absl::OkStatus();
    }
    FSDP_ASSIGN_OR_RETURN(const OpenFiles::Opened opened, files_open_.Open(place.file));
    return opened.file->Read(place.offset + offset, out);
  }

  // Keys are sorted, so those that begin with `name` and a slash are neighbours.
  absl::Status VisitKeys(const std::string& name,
                         const std::function<void(std::string_view rest)>& visit) const override {
    const std::string prefix = name + "/";
    for (auto at = LowerBound(prefix); at != entries_.end(); ++at) {
      const std::string key = absl::StrCat(names_[at->name], std::string(RestOf(*at)));
      if (!absl::StartsWith(key, prefix)) break;
      visit(std::string_view(key).substr(prefix.size()));
    }
    return absl::OkStatus();
  }

  const std::vector<std::string>& arrays() const override { return arrays_; }

  // The manifest, the files of nodes and the files of values.
  std::vector<std::string> files() const override {
    std::vector<std::string> files = {manifest_};
    files.insert(files.end(), paths_.begin(), paths_.end());
    std::sort(files.begin() + 1, files.end());
    return files;
  }

 private:
  std::string_view RestOf(const Entry& entry) const {
    return std::string_view(rests_).substr(entry.rest, entry.rest_bytes);
  }

  // Less than 0, 0 or more than 0, as the entry's key is before, at or behind `key`.
  int Compare(const Entry& entry, std::string_view key) const {
    const std::string& name = names_[entry.name];
    const int by_name = std::string_view(name).compare(key.substr(0, name.size()));
    return by_name != 0 ? by_name : RestOf(entry).compare(key.substr(name.size()));
  }
  bool IsKey(const Entry& entry, std::string_view key) const { return Compare(entry, key) == 0; }

  std::vector<Entry>::const_iterator LowerBound(const std::string& key) const {
    return std::lower_bound(entries_.begin(), entries_.end(), key,
                            [this](const Entry& entry, const std::string& k) { return Compare(entry, k) < 0; });
  }

  // A file that is no manifest may be a pointer of Git LFS or a page of HTML: then the error says so.
  absl::StatusOr<OcdbtManifest> ParseManifest(const std::string& name) {
    FSDP_ASSIGN_OR_RETURN(const std::string bytes,
                          ReadFile(PosixFileSystem(), JoinPath(files_open_.directory(), name), kMaxManifestBytes));
    absl::StatusOr<OcdbtManifest> manifest = ParseOcdbtManifest(bytes);
    if (manifest.ok()) return manifest;
    FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(JoinPath(files_open_.directory(), name)));
    return Annotate(manifest.status(), name);
  }

  // A numbered manifest has its versions in files of their own; the one with the highest number is the newest.
  absl::StatusOr<OcdbtManifest> ReadManifest() {
    manifest_ = kOcdbtManifestName;
    FSDP_ASSIGN_OR_RETURN(const OcdbtManifest manifest, ParseManifest(manifest_));
    if (!manifest.is_numbered) return manifest;
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(files_open_.directory()));
    std::string newest;
    for (const std::string& name : names) {
      const bool is_numbered = name.size() == kNumberedNameBytes && absl::StartsWith(name, "manifest.") &&
                               name.find_first_not_of("0123456789abcdef", sizeof("manifest.") - 1) == name.npos;
      if (is_numbered) newest = std::max(newest, name);
    }
    if (newest.empty()) {
      return absl::DataLossError(
          absl::StrCat(manifest_, " says that the versions are in files manifest.NUMBER, and there is none"));
    }
    FSDP_ASSIGN_OR_RETURN(OcdbtManifest numbered, ParseManifest(newest));
    manifest_ = newest;
    if (numbered.is_numbered || numbered.uuid != manifest.uuid) {
      return absl::DataLossError(absl::StrCat(newest, " is not of the same database as ", kOcdbtManifestName));
    }
    const std::string expected = absl::StrCat("manifest.", absl::Hex(numbered.generation, absl::kZeroPad16));
    if (newest != expected) {
      return absl::DataLossError(
          absl::StrCat(newest, " has generation ", numbered.generation, ", whose manifest is named ", expected));
    }
    return numbered;
  }

  // Visits the subtree at `place`, whose keys are stored without `prefix`. `first` is a lower bound of its first key.
  absl::Status Visit(const OcdbtPlace& place, int height, const std::string& prefix, const std::string& first) {
    const absl::Status status = VisitNode(place, height, prefix, first);
    return is_placed_ || status.ok() ? status : (is_placed_ = true, Annotate(status, Range(place)));
  }

  // A node that is visited twice would make a small file a large tree, or an endless one.
  absl::Status VisitNode(const OcdbtPlace& place, int height, const std::string& prefix, const std::string& first) {
    if (!visited_.emplace(place.file, place.offset).second) {
      return absl::DataLossError("two places of the tree refer to this node");
    }
    FSDP_ASSIGN_OR_RETURN(const OcdbtNode node, ReadNode(place));
    if (node.height() != height) {
      return absl::DataLossError(absl::StrCat("the node has height ", node.height(), ", expected ", height));
    }
    std::vector<uint32_t> numbers;
    if (height == 0) {
      for (const OcdbtPlace& file : node.files()) numbers.push_back(NumberOf(file.file));
    }
    FSDP_RETURN_IF_ERROR(node.VisitValues([&](std::string_view key, const OcdbtValue& value) {
      return Add(absl::StrCat(prefix, std::string(key)), first, value, numbers);
    }));
    return node.VisitChildren([&](const OcdbtChild& child) {
      return Visit(child.place, height - 1, prefix + child.prefix, prefix + child.key);
    });
  }

  // The range is compared with the file and the limit before memory is taken for it.
  absl::StatusOr<OcdbtNode> ReadNode(const OcdbtPlace& place) {
    FSDP_ASSIGN_OR_RETURN(const OpenFiles::Opened opened, files_open_.Open(place.file));
    NumberOf(place.file);
    FSDP_RETURN_IF_ERROR(CheckRange(opened, place.offset, place.nbytes));
    if (place.nbytes > static_cast<uint64_t>(kMaxOcdbtFrameBytes)) {
      return absl::ResourceExhaustedError(absl::StrCat("the node has more than ", kMaxOcdbtFrameBytes, " bytes"));
    }
    std::string frame(place.nbytes, '\0');
    FSDP_RETURN_IF_ERROR(opened.file->Read(static_cast<int64_t>(place.offset),
                                           absl::MakeSpan(reinterpret_cast<std::byte*>(frame.data()), frame.size())));
    tree_bytes_ += place.nbytes;
    return OcdbtNode::Parse(frame, std::string_view(place.file).substr(0, place.base_bytes));
  }

  static absl::Status CheckRange(const OpenFiles::Opened& opened, uint64_t offset, uint64_t nbytes) {
    const uint64_t size = opened.nbytes;
    if (offset <= size && nbytes <= size - offset) return absl::OkStatus();
    FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(*opened.file));
    return absl::DataLossError(absl::StrCat("the file has only ", size, " bytes: it is truncated or another one"));
  }

  // The number of a data file; entries have it in place of its path.
  uint32_t NumberOf(const std::string& path) {
    const auto [at, is_new] = number_of_.try_emplace(path, static_cast<uint32_t>(paths_.size()));
    if (is_new) {
      paths_.push_back(path);
      end_of_.push_back(0);
      kept_bytes_ += 2 * path.size() + 128;
    }
    return at->second;
  }

  // Adds an entry. Keys must come in ascending order, and not before the key by which the parent found this node: the
  // search by bisection relies on the order.
  absl::Status Add(const std::string& key, const std::string& first, const OcdbtValue& value,
                   const std::vector<uint32_t>& numbers) {
    const bool is_in_order = entries_.empty() || Compare(entries_.back(), key) < 0;
    if (key < first || !is_in_order) {
      return absl::DataLossError(absl::StrCat("key ", Quote(key), " is not behind the key before it"));
    }
    const size_t name_bytes = key.find('/') == key.npos ? 0 : key.find('/') + 1;
    if (names_.empty() || names_.back() != std::string_view(key).substr(0, name_bytes)) {
      names_.push_back(key.substr(0, name_bytes));
      kept_bytes_ += name_bytes + 2 * sizeof(std::string);
    }
    Entry entry = {.nbytes = value.nbytes,
                   .name = static_cast<uint32_t>(names_.size() - 1),
                   .rest = static_cast<uint32_t>(rests_.size()),
                   .rest_bytes = static_cast<uint32_t>(key.size() - name_bytes)};
    rests_.append(key, name_bytes);
    kept_bytes_ += 2 * sizeof(Entry) + 2 * entry.rest_bytes;
    if (value.file < 0) {
      entry.file = kInline;
      entry.offset = inline_.size();
      inline_.append(value.bytes);
      kept_bytes_ += 2 * value.bytes.size();
    } else {
      entry.file = numbers[value.file];
      entry.offset = value.offset;
      if (value.offset > INT64_MAX - value.nbytes) return absl::DataLossError("a value ends beyond 2^63");
      end_of_[entry.file] = std::max(end_of_[entry.file], value.offset + value.nbytes);
    }
    if (const auto array = ArrayOfMetadataKey(key)) {
      arrays_.emplace_back(*array);
      kept_bytes_ += 2 * sizeof(std::string) + array->size();
    }
    entries_.push_back(entry);
    return CheckMemory();
  }

  // Prefixes make a few bytes a long key, and zstd makes a few bytes a long node.
  absl::Status CheckMemory() const {
    const uint64_t most = (uint64_t{128} << 20) + 8 * tree_bytes_;
    if (kept_bytes_ <= most && rests_.size() < UINT32_MAX) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("its keys and small values take more than ", most,
                                                     " bytes of memory, which is not plausible for ", tree_bytes_,
                                                     " bytes of nodes"));
  }

  // Every value is inside its data file. Otherwise a truncated file is noticed only when its last value is read.
  absl::Status CheckFiles() {
    for (size_t i = 0; i < paths_.size(); ++i) {
      FSDP_ASSIGN_OR_RETURN(const OpenFiles::Opened opened, files_open_.Open(paths_[i]));
      const absl::Status status = CheckRange(opened, 0, end_of_[i]);
      if (!status.ok()) {
        return Annotate(status, absl::StrCat(Printable(paths_[i]), ": its last value ends at byte ", end_of_[i]));
      }
    }
    return absl::OkStatus();
  }

  mutable OpenFiles files_open_;
  std::string manifest_;
  std::vector<Entry> entries_;  // sorted by key
  std::vector<std::string> names_;
  std::string rests_;
  std::string inline_;
  std::vector<std::string> paths_;  // of data files
  std::vector<uint64_t> end_of_;    // of the last value in each
  std::vector<std::string> arrays_;
  // Only while it is opened.
  absl::flat_hash_map<std::string, uint32_t> number_of_;
  std::set<std::pair<std::string, uint64_t>> visited_;
  uint64_t tree_bytes_ = 0;
  uint64_t kept_bytes_ = 0;
  bool is_placed_ = false;  // an error already names the node that it is about
};

}  // namespace

absl::StatusOr<std::unique_ptr<KeyValues>> OpenOcdbtValues(const std::string& directory) {
  auto values = std::make_unique<OcdbtValues>(directory);
  const absl::Status status = values->Open();
  if (!status.ok()) return Annotate(status, directory);
  return values;
}

}  // namespace fsdp
