// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/rank_source.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/megatron/common_values.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_paths.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_traits.h"
#include "fsdp/checkpoint/foreign/megatron/rank_arguments.h"
#include "fsdp/checkpoint/foreign/megatron/rank_models.h"
#include "fsdp/checkpoint/foreign/megatron/tensor_partition.h"
#include "fsdp/checkpoint/foreign/megatron/vocabulary_note.h"
#include "fsdp/checkpoint/foreign/torch/pt/tensor_list.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/byte_total.h"
#include "fsdp/checkpoint/source/joined_tensor.h"
#include "fsdp/checkpoint/source/step_counter.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// The members of a rank's dict that are of one rank, and not of the run.
const std::vector<std::string>& RankMembers() {
  static const auto* names = new std::vector<std::string>{"model", "optimizer", "rng_state", "rerun_state_machine"};
  return *names;
}

// "model", or "model0", "model1", ...: the dicts of tensors, in order.
std::vector<std::string> ChunkNames(const TorchNode& root) {
  std::vector<std::string> names;
  while (root.Find(absl::StrCat("model", names.size())) != nullptr)
    names.push_back(absl::StrCat("model", names.size()));
  if (names.empty() && root.Find("model") != nullptr) names.emplace_back("model");
  return names;
}

// The tensors below `node` by their path. Values are counted in `values`.
void Flatten(const std::string& path, const TorchNode& node, std::vector<std::pair<std::string, int>>& tensors,
             int64_t& values) {
  if (node.kind() == TorchNode::Kind::kTensor) tensors.emplace_back(path, node.tensor());
  if (node.kind() == TorchNode::Kind::kValue && !node.value().is_null()) ++values;
  for (const auto& [name, member] : node.members()) {
    Flatten(path.empty() ? name : absl::StrCat(path, ".", name), member, tensors, values);
  }
}

// A note on ranks whose directories are all missing: only the tensors show them, and no number. For
// SourceLayout::notes.
std::vector<std::string> MissingRankNotes(const std::vector<JoinedRankTensor>& tensors, const RankGrid& grid) {
  std::vector<std::string> notes;
  const auto has = [&](absl::string_view part) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const JoinedRankTensor& tensor) { return absl::StrContains(tensor.name, part); });
  };
  if (!has("final_layernorm.") && !has("final_norm.")) {
    notes.emplace_back("no final norm is in it: if the model has one, the last pipeline stages are missing");
  }
  for (const JoinedRankTensor& tensor : tensors) {
    if (!absl::EndsWith(tensor.name, "self_attention.linear_proj.weight") || tensor.shape.rank() != 2) continue;
    const int64_t rows = tensor.shape.dim(0);
    const int64_t columns = tensor.shape.dim(1);
    if (columns > 0 && columns < rows && rows % columns == 0) {
      notes.push_back(absl::StrCat(Quote(tensor.name), " is ", tensor.shape.ToString(), ", so it may be the part of ",
                                   grid.tensor, " of ", grid.tensor * (rows / columns),
                                   " tensor parallel ranks: then the directories of the others are missing"));
    }
    break;
  }
  return notes;
}

// The legacy form: a torch file of each rank with its part of the model. All files are opened and joined when the
// source is; elements are read from the parts as they are asked for.
class RankSource final : public TensorSource, public TensorViews, public CoveringChecksums {
 public:
  RankSource(std::string given, std::string path) : given_(std::move(given)), path_(std::move(path)) {}

  absl::Status Open(const TensorSourceOptions& options) {
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, MegatronRankDirectories(path_));
    std::vector<std::pair<std::vector<int>, RankModel>> models;
    for (const std::string& name : names) {
      FSDP_ASSIGN_OR_RETURN(RankModel model, OpenRank(name, options));
      models.emplace_back(*MegatronRankNumbers(name), std::move(model));
    }
    FSDP_RETURN_IF_ERROR(ReadCommon());
    const RankArguments arguments = ReadRankArguments(files_[0]->path());
    const absl::Status joined = Join(std::move(models), arguments);
    if (!joined.ok()) return Annotate(joined, path_);
    FSDP_RETURN_IF_ERROR(AddContents(options));
    return NameOthers(names[0]);
  }

  const TensorViews* views() const override { return this; }
  const CoveringChecksums* covering_checksums() const override { return this; }
  const FormatTraits& traits() const override { return MegatronTraits(); }
  const StateDict& contents() const override { return contents_; }
  const SourceLayout& layout() const override { return layout_; }
  int64_t step() const override { return step_; }
  int world_size() const override { return static_cast<int>(files_.size()); }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> all = left_out_;
    for (std::string& beside : WeightsBesideStep(given_, path_, files())) all.push_back(std::move(beside));
    return all;
  }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    for (const auto& file : files_) paths.push_back(file->path());
    return paths;
  }

  bool has_checksums() const override {
    return std::any_of(files_.begin(), files_.end(), [](const auto& file) { return !file->checksums().empty(); });
  }

  // A copy counted as equal by its CRC, so its bytes are read here.
  absl::Status VerifyRest() const override {
    for (const auto& file : files_) {
      const File& payload = file->payload();  // first: it makes the table of CRCs
      std::vector<Interval> ranges;
      for (const TensorRef& copy : copies_) {
        if (copy.file != file.get() || file->checksums().empty()) continue;
        const StoragePlace place = file->place(copy.index);
        ranges.push_back({place.offset, place.offset + place.nbytes});
      }
      for (const Interval& missing : file->checksums().Missing()) ranges.push_back(missing);
      FSDP_RETURN_IF_ERROR(Annotate(ReadForChecksums(payload, ranges), file->path()));
    }
    return absl::OkStatus();
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const JoinedRankTensor* tensor, Find(key));
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, tensor->shape.numel()));
    const DType dtype = tensor->refs[0].dtype();
    const int64_t size = SizeOf(dtype);
    const PartReader read = [&](int64_t part, int64_t offset, absl::Span<std::byte> bytes) {
      const TensorRef& ref = tensor->refs[part];
      const Interval elements = {offset / size, (offset + std::ssize(bytes)) / size};
      return Annotate(ReadRefs({ref}, elements, bytes.data()), ref.file->path());
    };
    auto* const to = static_cast<std::byte*>(out);
    absl::Status status = ReadJoined(tensor->shape, size, Pieces(*tensor), interval, read, to);
    if (status.ok() && dtype == DType::kBool) status = CheckBoolBytes(to, interval);
    return Annotate(status, Describe(key));
  }

  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const JoinedRankTensor* tensor, Find(key));
    std::vector<TensorPlace> places;
    for (JoinedPiece& piece : Pieces(*tensor)) {
      const TensorRef& ref = tensor->refs[piece.part];
      if (!ref.tensor().is_contiguous()) {
        return absl::UnimplementedError("a part of it is a view whose elements are not contiguous");
      }
      const int64_t first = ref.first_byte() + piece.first * SizeOf(ref.dtype());
      places.push_back({ref.file->path(), first, std::move(piece.box)});
    }
    return places;
  }

  // A tensor of one rank may share its storage with others; a joined one counts as a storage of its own.
  std::optional<TensorStorage> Storage(const StateKey& key) const override {
    const absl::StatusOr<const JoinedRankTensor*> tensor = Find(key);
    if (!tensor.ok()) return std::nullopt;
    int64_t nbytes = 0;
    for (const TensorRef& ref : (*tensor)->refs) nbytes += ref.tensor().touched_bytes();
    return TensorStorage{
        .id = std::distance(joined_.tensors.data(), *tensor), .nbytes = nbytes, .view = 0, .touched_bytes = nbytes};
  }

  absl::Status ReadDistinct(const StateKey&, const Interval&, void*) const override {
    return absl::UnimplementedError("it is joined from the files of ranks");
  }

 private:
  static std::vector<JoinedPiece> Pieces(const JoinedRankTensor& tensor) {
    return PiecesOf(tensor.partition, tensor.part, static_cast<int>(tensor.refs.size()));
  }

  absl::StatusOr<const JoinedRankTensor*> Find(const StateKey& key) const {
    const auto at = key.section == StateKey::Section::kModel ? index_.find(key.fqn) : index_.end();
    if (at != index_.end()) return &joined_.tensors[at->second];
    return absl::NotFoundError(absl::StrCat(path_, " holds no ", Describe(key)));
  }

  absl::StatusOr<RankModel> OpenRank(const std::string& name, const TensorSourceOptions& options) {
    const std::string path = JoinPath(JoinPath(path_, name), kMegatronRankFileName);
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<TorchFile> file, TorchFile::Open(path, options));
    TorchNode root = file->TakeRoot();
    const std::vector<std::string> chunks = ChunkNames(root);
    if (!root.is_branch() || chunks.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": its dict has no \"model\""));
    }
    FSDP_RETURN_IF_ERROR(Annotate(TakeIteration(root, name), path));
    RankModel model;
    model.name = name;
    model.file = file.get();
    for (const std::string& chunk : chunks) Flatten("", *root.Find(chunk), model.chunks.emplace_back(), values_);
    has_optimizer_ = has_optimizer_ || root.Find("optimizer") != nullptr;
    if (files_.empty()) first_root_ = std::move(root);
    files_.push_back(std::move(file));
    return model;
  }

  // Every rank's file is of the same iteration.
  absl::Status TakeIteration(const TorchNode& root, const std::string& name) {
    std::optional<int64_t> iteration;
    const TorchNode* const node = root.Find("iteration");
    if (node != nullptr && node->kind() == TorchNode::Kind::kValue && node->value().is_number()) {
      iteration = StepOfNumber(node->value().get<double>());
    }
    if (files_.empty()) iteration_ = iteration;
    if (iteration == iteration_) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("it is of another iteration than the file of ", files_[0]->path(), ": ",
                                            iteration.value_or(-1), " != ", iteration_.value_or(-1), ", rank ", name));
  }

  absl::Status ReadCommon() {
    FSDP_ASSIGN_OR_RETURN(step_, MegatronStep(path_, iteration_));
    std::vector<std::string> skipped = RankMembers();
    for (const std::string& chunk : ChunkNames(first_root_)) skipped.push_back(chunk);
    absl::StatusOr<CommonValues> common = ReadCommonValues(std::move(first_root_), skipped);
    if (!common.ok()) return Annotate(common.status(), files_[0]->path());
    common_ = *std::move(common);
    return absl::OkStatus();
  }

  absl::Status Join(std::vector<std::pair<std::vector<int>, RankModel>> models, const RankArguments& arguments) {
    FSDP_ASSIGN_OR_RETURN(const RankGrid grid, MakeRankGrid(std::move(models)));
    FSDP_RETURN_IF_ERROR(CheckHasAllRanks(arguments, grid.tensor, grid.pipeline, grid.expert));
    FSDP_ASSIGN_OR_RETURN(joined_, JoinRankModels(grid));
    copies_ = std::move(joined_.copies);
    layout_.notes.push_back(absl::StrCat("joined from ", grid.tensor, " tensor, ", grid.pipeline, " pipeline and ",
                                         grid.expert, " expert parallel ranks"));
    for (std::string& note : MissingRankNotes(joined_.tensors, grid)) layout_.notes.push_back(std::move(note));
    return absl::OkStatus();
  }

  absl::Status AddContents(const TensorSourceOptions& options) {
    // Older files have the rows of queries, keys and values in another order, which would be a silently wrong model.
    constexpr double kGroupedQueries = 3;  // the checkpoint_version since which linear_qkv is ordered by query group
    const bool is_old = common_.checkpoint_version.value_or(0) < kGroupedQueries;
    ByteTotal total;
    for (size_t i = 0; i < joined_.tensors.size(); ++i) {
      const JoinedRankTensor& tensor = joined_.tensors[i];
      StateKey key = StateKey::Model(tensor.name);
      FSDP_RETURN_IF_ERROR(CheckStateKey(key));
      const bool is_qkv =
          absl::StrContains(tensor.name, "linear_qkv.") || absl::StrContains(tensor.name, "query_key_value.");
      if (is_old && is_qkv) {
        return absl::InvalidArgumentError(
            absl::StrCat(path_, ": ", Describe(key), " is in the order of checkpoint_version ",
                         common_.checkpoint_version.value_or(0),
                         ", expected 3 or later: load the checkpoint with Megatron-LM and save it again"));
      }
      FSDP_RETURN_IF_ERROR(Annotate(total.Add(tensor.name, tensor.refs[0].dtype(), tensor.shape), path_));
      index_[tensor.name] = i;
      ShardedTensor described;
      described.dtype = tensor.refs[0].dtype();
      described.shape = tensor.shape;
      if (const std::string note = VocabularyNote(tensor.name, tensor.shape); !note.empty()) {
        layout_.notes.push_back(note);
      }
      contents_.Set(std::move(key), std::move(described));
    }
    contents_.aliases = joined_.aliases;
    for (auto& [name, text] : common_.texts) {
      StateKey key = StateKey::Extra(name);
      FSDP_RETURN_IF_ERROR(CheckStateKey(key));
      contents_.Set(std::move(key), std::move(text));
    }
    left_out_ = std::move(common_.left_out);
    if (has_optimizer_ && !options.model_only) {
      left_out_.emplace_back(
          "\"optimizer\" (the state of a rank's parameters by number; save with --ckpt-format torch_dist to keep it)");
    }
    if (joined_.extra_states + values_ > 0) {
      left_out_.push_back(
          absl::StrCat(joined_.extra_states + values_, " _extra_state of modules (Transformer Engine's state of FP8)"));
    }
    return absl::OkStatus();
  }

  // Other files next to a rank's: distrib_optim.pt.
  absl::Status NameOthers(const std::string& rank) {
    FSDP_ASSIGN_OR_RETURN(std::vector<std::string> names, PosixFileSystem().List(JoinPath(path_, rank)));
    std::sort(names.begin(), names.end());
    constexpr size_t kMostNamed = 20;
    for (const std::string& name : names) {
      if (name == kMegatronRankFileName || left_out_.size() == kMostNamed) continue;
      left_out_.push_back(absl::StrCat(Quote(name), " of the ranks (the distributed optimizer has one)"));
    }
    return absl::OkStatus();
  }

  const std::string given_;
  const std::string path_;  // of one iteration
  std::vector<std::unique_ptr<TorchFile>> files_;
  TorchNode first_root_;
  std::optional<int64_t> iteration_;
  CommonValues common_;
  RankModels joined_;
  std::vector<TensorRef> copies_;
  absl::flat_hash_map<std::string, size_t> index_;  // of joined_.tensors, by name
  StateDict contents_;
  SourceLayout layout_;
  std::vector<std::string> left_out_;
  int64_t values_ = 0;  // in the models' dicts that are not tensors
  bool has_optimizer_ = false;
  int64_t step_ = -1;
  const std::map<std::string, std::string> metadata_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenMegatronRanks(const std::string& given, const std::string& directory,
                                                                const TensorSourceOptions& options) {
  auto source = std::make_unique<RankSource>(given, directory);
  FSDP_RETURN_IF_ERROR(source->Open(options));
  return source;
}

}  // namespace fsdp
