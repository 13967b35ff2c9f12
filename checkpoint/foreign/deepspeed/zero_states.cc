// SPDX-License-Identifier: Apache-2.0
//
// A unit is what one flat tensor of a rank holds: a group of ZeRO 1 and 2, a sub-group of ZeRO 3. Every unit has its
// place in one FlatSpace of each state, and so has every parameter; frozen parameters of ZeRO 3 come after all units.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/deepspeed/named_groups.h"
#include "fsdp/checkpoint/foreign/deepspeed/trained_states.h"
#include "fsdp/checkpoint/foreign/deepspeed/zero_units.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

constexpr char kFp32[] = "fp32";

// Entries of an optimizer's file that say how it is stored, or repeat the model's file.
bool IsStructure(const std::string& name) {
  static constexpr const char* kNames[] = {"base_optimizer_state",
                                           "base_optimizer_state_step",
                                           "optimizer_state_dict",
                                           "single_partition_of_fp32_groups",
                                           "fp32_flat_groups",
                                           "zero_stage",
                                           "partition_count",
                                           "group_paddings",
                                           "param_alignment_paddings",
                                           "param_slice_mappings",
                                           "ds_version",
                                           "universal_checkpoint_info"};
  return std::any_of(std::begin(kNames), std::end(kNames), [&](const char* known) { return name == known; });
}

// The flat tensors and the scalars of one rank's file.
struct RankFile {
  std::string name;
  std::vector<FlatRun> fp32;                                     // by unit
  std::vector<std::map<std::string, FlatRun>> flat_states;       // by unit
  std::vector<std::map<std::string, std::string>> scalar_bytes;  // by unit: bytes or text, to be compared
};

// Every rank's file has, for each unit (a group of parameters), one flat tensor of float32 parameters and one for each
// state. ZeRO 1 and 2: the parameters of the unit one after another, padded to a multiple of twice the ranks, and each
// rank has an equal part of that. ZeRO 3: each parameter is divided by itself, with padding at its end, and a rank's
// flat tensor is its pieces one after another. A FlatSpace for each state maps both onto parameters; no element is
// copied before it is read.
class ZeroReader {
 public:
  ZeroReader(const DeepSpeedFiles& files, const ModelStates& model, const TensorSourceOptions& options,
             StoredTensors& tensors)
      : files_(files), model_(model), options_(options), tensors_(tensors), spaces_{FlatSpace(ListCount())} {}

  absl::StatusOr<TrainedStates> Read() {
    for (size_t rank = 0; rank < files_.optim.size(); ++rank) FSDP_RETURN_IF_ERROR(ReadRank(rank));
    FSDP_RETURN_IF_ERROR(PlaceParameters());
    FSDP_RETURN_IF_ERROR(tensors_.SetParameters(names_, offsets_, states_, std::move(spaces_)));
    FSDP_RETURN_IF_ERROR(Describe());
    return std::move(result_);
  }

 private:
  bool is_partitioned() const { return files_.is_partitioned; }
  int ListCount() const { return files_.is_partitioned ? static_cast<int>(files_.optim.size()) : 1; }
  int64_t world() const { return static_cast<int64_t>(files_.optim.size()); }

  // Files are opened one after the other and only the places of tensors are kept, since a job may have thousands of
  // ranks.
  absl::Status ReadRank(size_t rank) {
    uint32_t number = 0;
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TorchFile> file,
                          tensors_.OpenFile(files_.optim[rank], options_, &number));
    TorchNode root = file->TakeRoot();
    const auto read = [&]() -> absl::Status {
      TorchNode* const zero = root.Find("optimizer_state_dict");
      if (zero == nullptr || !zero->is_branch()) {
        return absl::DataLossError("it has no \"optimizer_state_dict\" with tensors");
      }
      RankFile parsed;
      parsed.name = files_.optim[rank];
      FSDP_RETURN_IF_ERROR(Parse(number, *file, *zero, rank == 0, parsed));
      if (rank == 0) {
        FSDP_ASSIGN_OR_RETURN(units_, ZeroUnits::Place(files_, model_, PartsOf(parsed), *zero));
      }
      FSDP_RETURN_IF_ERROR(AddRuns(static_cast<int64_t>(rank), parsed, *zero));
      return rank == 0 ? TakeOthers(number, *file, *zero) : absl::OkStatus();
    };
    return Annotate(read(), file->path());
  }

  // Finds the flat tensors. The number of groups and of partitions must be what the model file says.
  absl::Status Parse(uint32_t number, const TorchFile& file, TorchNode& zero, bool is_first, RankFile& parsed) {
    FSDP_ASSIGN_OR_RETURN(const auto counts, FindCounts(zero, "partition_count"));
    for (const int64_t count : counts.value_or(std::vector<int64_t>())) {
      if (count == world()) continue;
      return absl::DataLossError(
          absl::StrCat("its partition_count is ", count, ", but the checkpoint is of ", world(), " ranks"));
    }
    const char* const key = is_partitioned() ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    const TorchNode* const groups = zero.Find(key);
    const bool is_list = groups != nullptr && groups->is_branch() && groups->is_list;
    if (!is_list || groups->members().size() != model_.groups.size()) {
      return absl::DataLossError(absl::StrCat(
          "its ", Quote(key), is_list ? absl::StrCat(" has ", groups->members().size(), " groups") : " is not a list",
          ", but param_shapes has ", model_.groups.size(), " groups"));
    }
    for (const auto& [i, group] : groups->members()) {
      const std::optional<FlatRun> run =
          group.kind() == Kind::kTensor ? StoredTensors::RunOf(number, file, group.tensor()) : std::nullopt;
      if (!run) return absl::DataLossError(absl::StrCat(Quote(absl::StrCat(key, ".", i)), " is not a flat tensor"));
      parsed.fp32.push_back(*run);
    }
    if (options_.model_only) return absl::OkStatus();
    TorchNode* const optimizer = zero.Find(is_partitioned() ? "optimizer_state_dict" : "base_optimizer_state");
    if (optimizer == nullptr) return absl::DataLossError("it has no state of the optimizer");
    const bool is_elastic = optimizer->is_branch() ? optimizer->is_list : ItemsOf(optimizer->value()).has_value();
    if (is_elastic && !is_partitioned()) return ParseElastic(number, file, zero, *optimizer, is_first, parsed);
    Expand(*optimizer);
    return ParseOptimizer(number, file, *optimizer, is_first, parsed);
  }

  // With zero_optimization.elastic_checkpoint, once the default: a list with the state of each group, without padding,
  // and perhaps a step of all groups. Their options are not saved.
  absl::Status ParseElastic(uint32_t number, const TorchFile& file, const TorchNode& zero, TorchNode& states,
                            bool is_first, RankFile& parsed) {
    if (states.is_branch() && states.members().size() != model_.groups.size()) {
      return absl::DataLossError(absl::StrCat("its base_optimizer_state has ", states.members().size(),
                                              " groups, but param_shapes ", model_.groups.size()));
    }
    FSDP_RETURN_IF_ERROR(ParseStates(number, file, states, is_first, parsed));
    const TorchNode* const step = zero.Find("base_optimizer_state_step");
    PythonJson groups = PythonJson::array();
    for (size_t unit = 0; unit < model_.groups.size(); ++unit) {
      if (step != nullptr) FSDP_RETURN_IF_ERROR(ParseState(number, file, unit, "step", *step, is_first, parsed));
      groups.push_back({{"params", PythonJson::array({unit})}});
    }
    if (!is_first) return absl::OkStatus();
    groups_ = TorchNode::Value(std::move(groups));
    result_.left_out.emplace_back("the options in param_groups, such as lr (an elastic checkpoint does not have them)");
    return absl::OkStatus();
  }

  absl::Status ParseOptimizer(uint32_t number, const TorchFile& file, TorchNode& optimizer, bool is_first,
                              RankFile& parsed) {
    TorchNode* const states = optimizer.Find("state");
    TorchNode* const groups = optimizer.Find("param_groups");
    if (states == nullptr || groups == nullptr) {
      return absl::DataLossError("its optimizer has no \"state\" and \"param_groups\"");
    }
    Expand(*states);
    FSDP_RETURN_IF_ERROR(ParseStates(number, file, *states, is_first, parsed));
    if (is_first) groups_ = tensors_.Import(number, file, *groups);
    return absl::OkStatus();
  }

  // `states`: of each unit, by its number.
  absl::Status ParseStates(uint32_t number, const TorchFile& file, TorchNode& states, bool is_first, RankFile& parsed) {
    parsed.flat_states.resize(model_.groups.size());
    parsed.scalar_bytes.resize(model_.groups.size());
    if (is_first) scalars_.resize(model_.groups.size());
    for (size_t unit = 0; unit < model_.groups.size(); ++unit) {
      TorchNode* const state = states.Find(absl::StrCat(unit));
      if (state == nullptr) continue;  // saved before the first step
      Expand(*state);
      for (const auto& [name, value] : state->members()) {
        FSDP_RETURN_IF_ERROR(ParseState(number, file, unit, name, value, is_first, parsed));
      }
    }
    return absl::OkStatus();
  }

  // A state is a flat tensor, or a scalar that all parameters of the unit have.
  absl::Status ParseState(uint32_t number, const TorchFile& file, size_t unit, const std::string& name,
                          const TorchNode& value, bool is_first, RankFile& parsed) {
    const std::string what = absl::StrCat("state ", Quote(name), " of group ", unit);
    if (value.kind() == Kind::kTensor) {
      const TorchTensors& stored = file.archive().tree.tensors;
      const Shape shape = stored.shape(value.tensor());
      if (shape.rank() > 0) {
        const std::optional<FlatRun> run = StoredTensors::RunOf(number, file, value.tensor());
        if (!run || shape.numel() < parsed.fp32[unit].numel) {
          return absl::InvalidArgumentError(
              absl::StrCat(what, " has the shape ", shape.ToString(), ", which is not one element for each of the ",
                           parsed.fp32[unit].numel, " in the rank's part: it is not read; read only the model"));
        }
        parsed.flat_states[unit].emplace(name, *run);
        return absl::OkStatus();
      }
      FSDP_ASSIGN_OR_RETURN(parsed.scalar_bytes[unit][name], StoredTensors::ScalarBytes(file, value.tensor()));
      if (is_first) scalars_[unit].Add(name, TorchNode::Tensor(tensors_.AddView(number, file, value.tensor())));
      return absl::OkStatus();
    }
    if (value.is_branch()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " is a dict or list of tensors, which is not read; read only the model"));
    }
    parsed.scalar_bytes[unit].emplace(name, value.value().dump(-1, ' ', false, PythonJson::error_handler_t::replace));
    if (is_first) scalars_[unit].Add(name, value);
    return absl::OkStatus();
  }

  // The longest flat tensor of each unit.
  static std::vector<int64_t> PartsOf(const RankFile& file) {
    std::vector<int64_t> parts;
    for (const FlatRun& run : file.fp32) parts.push_back(run.numel);
    for (size_t unit = 0; unit < file.flat_states.size(); ++unit) {
      for (const auto& [name, run] : file.flat_states[unit]) parts[unit] = std::max(parts[unit], run.numel);
    }
    return parts;
  }

  // All ranks have the same step, states and paddings; a file that differs was exchanged or is of another save.
  absl::Status AddRuns(int64_t rank, RankFile& file, const TorchNode& zero) {
    if (rank > 0) {
      const TorchNode* const paddings = FindValue(zero, "param_alignment_paddings");
      const PythonJson own = paddings == nullptr ? PythonJson() : paddings->value();
      if (own != alignment_json_) return Differs(file, "param_alignment_paddings");
      if (file.scalar_bytes != scalar_bytes_) return Differs(file, "step, or another number of the optimizer,");
    } else {
      if (const TorchNode* const paddings = FindValue(zero, "param_alignment_paddings")) {
        alignment_json_ = paddings->value();
      }
      scalar_bytes_ = file.scalar_bytes;
      state_names_ = NamesOf(file);
    }
    if (NamesOf(file) != state_names_) return Differs(file, "names of the optimizer's states");
    for (size_t unit = 0; unit < units_.part.size(); ++unit) {
      FSDP_RETURN_IF_ERROR(AddRun(rank, unit, "its flat tensor", 0, file.fp32[unit]));
      if (file.flat_states.empty()) continue;
      for (const auto& [name, run] : file.flat_states[unit]) {
        FSDP_RETURN_IF_ERROR(AddRun(rank, unit, Quote(name), SpaceOf(name), run));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Differs(const RankFile& file, const std::string& what) const {
    return absl::DataLossError(absl::StrCat("its ", what, " differs from the same entry of ", Quote(files_.optim[0]),
                                            ": ", Quote(file.name), " is of another save"));
  }

  static std::vector<std::vector<std::string>> NamesOf(const RankFile& file) {
    std::vector<std::vector<std::string>> names;
    for (const auto& states : file.flat_states) {
      std::vector<std::string>& own = names.emplace_back();
      for (const auto& [name, run] : states) own.push_back(name);
    }
    return names;
  }

  // Space 0 has the float32 parameters, the others a state each, in the order in which they are found.
  size_t SpaceOf(const std::string& name) {
    const auto at = std::find(states_.begin() + 1, states_.end(), name);
    if (at != states_.end()) return static_cast<size_t>(at - states_.begin());
    states_.push_back(name);
    spaces_.emplace_back(ListCount());
    return states_.size() - 1;
  }

  // Part `rank` of a unit. Padding is at the end of the unit, and a part may lack it.
  absl::Status AddRun(int64_t rank, size_t unit, const std::string& what, size_t space, FlatRun run) {
    const int64_t part = units_.part[unit];
    const int64_t before = is_partitioned() ? 0 : rank * part;
    const int64_t least = is_partitioned() ? part : std::clamp<int64_t>(units_.numel[unit] - before, 0, part);
    if (run.numel < least || run.numel > part) {
      return absl::DataLossError(absl::StrCat(what, " of group ", unit, " has ", run.numel, " elements, expected ",
                                              least, least == part ? "" : absl::StrCat(" to ", part),
                                              ": it is of another rank or of another save"));
    }
    run.begin = units_.begin[unit] + before;
    spaces_[space].Add(is_partitioned() ? static_cast<int>(rank) : 0, run);
    return absl::OkStatus();
  }

  // Offsets in the space follow from the order of param_shapes, which is the order in which DeepSpeed flattens. In ZeRO
  // 3 sub-groups continue each other, because a parameter may be in two of them.
  absl::Status PlaceParameters() {
    for (size_t unit = 0; unit < model_.groups.size(); ++unit) {
      int64_t offset = is_partitioned() && unit > 0 ? next_ : units_.begin[unit];
      for (size_t i = 0; i < model_.groups[unit].size(); ++i) {
        const auto& [name, shape] = model_.groups[unit][i];
        names_.emplace_back(name, shape);
        offsets_.push_back(offset);
        unit_of_.push_back(unit);
        const int64_t numel = shape.numel();
        offset +=
            is_partitioned() ? numel / world() + (numel % world() != 0 ? 1 : 0) : numel + units_.PaddingAfter(unit, i);
      }
      next_ = offset;
    }
    trained_ = names_.size();
    if (!is_partitioned()) return absl::OkStatus();
    int64_t offset = units_.end;
    for (size_t i = 0; i < model_.frozen.size(); ++i) {
      names_.push_back(model_.frozen[i]);
      offsets_.push_back(offset);
      for (size_t rank = 0; rank < model_.frozen_runs.size(); ++rank) {
        FlatRun run = model_.frozen_runs[rank][i];
        run.begin = offset;
        spaces_[0].Add(static_cast<int>(rank), run);
      }
      offset += model_.frozen_runs.empty() ? 0 : model_.frozen_runs[0][i].numel;
      if (offset > ZeroUnits::kMaxTotal) return absl::DataLossError("frozen_param_shapes has too many elements");
    }
    return absl::OkStatus();
  }

  // The result, by name.
  absl::Status Describe() {
    TorchNode state;
    state.Reserve(static_cast<int64_t>(trained_));
    for (size_t p = 0; p < names_.size(); ++p) {
      const std::string& name = names_[p].first;
      const std::optional<int> fp32 = tensors_.StateOf(p, 0);
      if (!fp32) return absl::DataLossError(absl::StrCat(files_.directory, ": ", Quote(name), " is in no file"));
      if (!result_.parameters.emplace(name, *fp32).second) {
        return absl::DataLossError(absl::StrCat(files_.directory, ": param_shapes has ", Quote(name), " twice"));
      }
      result_.order.push_back(name);
      if (p >= trained_ || options_.model_only) continue;
      TorchNode own;
      for (const auto& [scalar, value] : scalars_[unit_of_[p]].members()) own.Add(scalar, value);
      for (size_t s = 1; s < states_.size(); ++s) {
        const bool is_wanted = names_[p].second.numel() > 0;  // without elements it has every state
        const std::optional<int> number = is_wanted ? tensors_.StateOf(p, s) : std::nullopt;
        if (number) own.Add(states_[s], TorchNode::Tensor(*number));
      }
      if (!own.members().empty()) state.Add(name, std::move(own));
    }
    if (options_.model_only) return absl::OkStatus();
    FSDP_ASSIGN_OR_RETURN(TorchNode groups, GroupsByName(groups_, model_.groups));
    result_.optimizer.Add("state", std::move(state));
    result_.optimizer.Add("param_groups", std::move(groups));
    return absl::OkStatus();
  }

  absl::Status TakeOthers(uint32_t number, const TorchFile& file, TorchNode& zero) {
    return zero.Consume([&](const std::string& name, TorchNode& member) {
      if (!IsStructure(name)) result_.others.Add(name, tensors_.Import(number, file, member));
      return absl::OkStatus();
    });
  }

  const DeepSpeedFiles& files_;
  const ModelStates& model_;
  const TensorSourceOptions& options_;
  StoredTensors& tensors_;
  TrainedStates result_;

  PythonJson alignment_json_;
  ZeroUnits units_;
  int64_t next_ = 0;
  std::vector<std::string> states_ = {kFp32};
  std::vector<FlatSpace> spaces_;                      // by states_
  std::vector<std::vector<std::string>> state_names_;  // of rank 0, by unit
  std::vector<std::map<std::string, std::string>> scalar_bytes_;
  std::vector<TorchNode> scalars_;  // by unit: states that are no flat tensors, of rank 0
  TorchNode groups_;
  NamedShapes names_;
  std::vector<int64_t> offsets_;
  std::vector<size_t> unit_of_;  // of each parameter
  size_t trained_ = 0;           // of names_; frozen parameters follow
};

}  // namespace

absl::StatusOr<TrainedStates> ReadZeroStates(const DeepSpeedFiles& files, const ModelStates& model,
                                             const TensorSourceOptions& options, StoredTensors& tensors) {
  return ZeroReader(files, model, options, tensors).Read();
}

}  // namespace fsdp
