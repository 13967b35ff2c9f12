// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/orbax_source.h"

#include <algorithm>
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
#include "fsdp/checkpoint/foreign/orbax/orbax_items.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_names.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_paths.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_tree.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/expansion.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/checkpoint/source/step_counter.h"
#include "fsdp/checkpoint/source/stored_values.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

class OrbaxSource final : public TensorSource, public TensorViews {
 public:
  OrbaxSource(std::string path, const TensorSourceOptions& options) : path_(std::move(path)), options_(options) {}

  absl::Status Open() {
    FSDP_RETURN_IF_ERROR(FindStep());
    FSDP_ASSIGN_OR_RETURN(items_, OrbaxItems::Open(directory_, memory_));
    left_out_.insert(left_out_.end(), items_.left_out().begin(), items_.left_out().end());
    texts_ = items_.texts();
    FSDP_RETURN_IF_ERROR(NameValues());
    return ReadStep();
  }

  const FormatTraits& traits() const override { return OrbaxTraits(); }
  const StateDict& contents() const override { return contents_; }
  int64_t step() const override { return step_; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const SourceLayout& layout() const override { return layout_; }

  std::vector<std::string> files() const override { return items_.files(); }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> all = left_out_;
    for (std::string& beside : WeightsBesideStep(path_, directory_, files())) all.push_back(std::move(beside));
    return all;
  }

  // An array of which chunks are missing can be far larger than what is stored of it. Zeros that an optimizer begins
  // with are no reason to doubt a checkpoint.
  const TensorViews* views() const override { return is_moderate_ ? nullptr : this; }

  std::optional<TensorStorage> Storage(const StateKey& key) const override {
    const auto at = arrays_.find(key);
    if (at == arrays_.end()) return std::nullopt;
    const int64_t nbytes = at->second->StoredBytes();
    return TensorStorage{.id = at->second->number(), .nbytes = nbytes, .view = 0, .touched_bytes = nbytes};
  }

  absl::Status ReadDistinct(const StateKey&, const Interval&, void*) const override {
    return absl::UnimplementedError("the elements of an array are read one by one");
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const ZarrArray* const array, Find(key));
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, array->metadata().shape.numel()));
    auto* const bytes = static_cast<std::byte*>(out);
    absl::Status status = array->Read(interval, bytes);
    if (status.ok() && array->metadata().dtype == DType::kBool) status = CheckBoolBytes(bytes, interval);
    return status.ok() ? status : Annotate(status, absl::StrCat(Describe(key), " of ", directory_));
  }

  // Cut at the rows of chunks, several of them if they are small.
  std::vector<Interval> Pieces(const StateKey& key, const Interval& interval) const override {
    const auto at = arrays_.find(key);
    if (at == arrays_.end()) return TensorSource::Pieces(key, interval);
    const int64_t unit = UnitOf(*at->second);
    std::vector<Interval> pieces;
    for (int64_t begin = interval.begin; begin < interval.end;) {
      const Interval cut = {begin, std::min(interval.end, begin + unit - begin % unit)};
      const std::vector<Interval> more = TensorSource::Pieces(key, cut);
      pieces.insert(pieces.end(), more.begin(), more.end());
      begin = cut.end;
    }
    return pieces;
  }

  // The pieces of one row of chunks are read by one thread: the others would wait for it to decode them.
  absl::Status ReadAll(const std::vector<TensorRead>& reads, ThreadPool& pool) const override {
    std::map<std::pair<int64_t, int64_t>, std::vector<TensorRead>> bands;  // by array and row
    for (const TensorRead& read : reads) {
      FSDP_ASSIGN_OR_RETURN(const ZarrArray* const array, Find(read.key));
      for (const Interval& piece : Pieces(read.key, read.interval)) {
        std::byte* const out = read.out + (piece.begin - read.interval.begin) * SizeOf(read.dtype);
        const bool is_plain = array->metadata().codec.is_plain();
        const int64_t row = is_plain ? piece.begin : piece.begin / UnitOf(*array);
        bands[{array->number(), row}].push_back({read.key, piece, read.dtype, out});
      }
    }
    std::vector<const std::vector<TensorRead>*> tasks;
    tasks.reserve(bands.size());
    for (const auto& [place, pieces] : bands) tasks.push_back(&pieces);
    return pool.ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
      for (const TensorRead& piece : *tasks[i]) FSDP_RETURN_IF_ERROR(ReadPiece(piece));
      return absl::OkStatus();
    });
  }

  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const ZarrArray* const array, Find(key));
    return array->Places(DirectoryOf(*array));
  }

 private:
  // A number of elements at whose multiples reads are cut.
  static int64_t UnitOf(const ZarrArray& array) {
    constexpr int64_t kPieceBytes = int64_t{4} << 20;
    const int64_t band = array.BandNumel();
    return band * std::max<int64_t>(1, kPieceBytes / SizeOf(*array.metadata().dtype) / band);
  }

  // Reads a piece and converts it, if another dtype is wanted.
  absl::Status ReadPiece(const TensorRead& piece) const {
    const DType stored = contents_.FindTensor(piece.key)->dtype;
    if (stored == piece.dtype) return Read(piece.key, piece.interval, piece.out);
    std::vector<std::byte> elements(piece.interval.size() * SizeOf(stored));
    FSDP_RETURN_IF_ERROR(Read(piece.key, piece.interval, elements.data()));
    const absl::Status status = Convert(stored, elements.data(), piece.dtype, piece.out, piece.interval.size());
    return status.ok() ? status : Annotate(status, Describe(piece.key));
  }

  absl::StatusOr<const ZarrArray*> Find(const StateKey& key) const {
    const auto at = arrays_.find(key);
    if (at != arrays_.end()) return at->second;
    return absl::NotFoundError(absl::StrCat(directory_, " holds no ", Describe(key)));
  }

  const std::string& DirectoryOf(const ZarrArray& array) const {
    for (const OrbaxItems::Tree& branch : items_.trees()) {
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
    FSDP_ASSIGN_OR_RETURN(const bool is_in_step, IsThere(JoinPath(parts.directory, kOrbaxStepName)));
    const std::string name = is_in_step ? SplitPath(parts.directory).name : parts.name;
    step_ = StepOfOrbaxName(name).value_or(-1);
    // Any name may end in a number; a manager's is a step.
    FSDP_ASSIGN_OR_RETURN(const OrbaxPath read, OrbaxPathOf(directory_));
    is_step_of_manager_ = kind == OrbaxPath::kRoot || is_in_step || read == OrbaxPath::kStep;
    if (step_ >= 0) step_note_ = absl::StrCat("step ", step_, " is the name of the folder ", Quote(name));
    return absl::OkStatus();
  }

  absl::Status NameValues() {
    const bool is_one = items_.trees().size() == 1;
    std::vector<OrbaxArrayName> names;
    std::vector<const ZarrArray*> arrays;
    std::vector<std::string> items;
    std::vector<std::string> unreadable;
    for (const OrbaxItems::Tree& branch : items_.trees()) {
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
    for (const OrbaxItems::Tree& branch : items_.trees()) {
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
    int64_t whole = 0;  // of all arrays, each a quarter of its bytes, since their sum need not fit
    int64_t stored = 0;
    for (const auto& [key, array] : arrays_) {
      if (is_moderate_) {
        whole += array->metadata().shape.numel() / Expansion::kModerateFactor * SizeOf(*array->metadata().dtype);
        stored += array->StoredBytes();
        is_moderate_ = whole <= stored + Expansion::kModerateBytes;
      }
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

  // The name of a manager's folder decides; else the best counter of the tree that is a number of steps; else the name.
  absl::Status ReadStep() {
    for (const auto& [name, array] : counters_) {
      std::byte bytes[16] = {};
      const absl::Status status = array->Read({0, 1}, bytes);
      if (!status.ok()) return Annotate(status, absl::StrCat("tensor ", Quote(name), " of ", directory_));
      double value = -1;
      if (!Convert(*array->metadata().dtype, bytes, DType::kFloat64, &value, 1).ok()) continue;
      const std::optional<int64_t> counted = StepOfNumber(value);
      if (!counted) continue;
      if (step_ < 0 || !is_step_of_manager_) {
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
  OrbaxItems items_;
  std::map<StateKey, const ZarrArray*> arrays_;
  std::vector<std::pair<std::string, std::string>> texts_;  // extra values
  std::vector<std::pair<std::string, const ZarrArray*>> counters_;
  StateDict contents_;
  SourceLayout layout_;
  int64_t step_ = -1;
  std::string step_note_;
  bool is_step_of_manager_ = false;
  bool is_moderate_ = true;  // the arrays are not much larger than what is stored of them
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
