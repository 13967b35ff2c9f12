// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/formats/known_paths.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/natural_order.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/shell_word.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_shards.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_plan.h"
#include "fsdp/checkpoint/formats/hub_snapshot.h"
#include "fsdp/checkpoint/formats/paths_below.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/rank_file_names.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Probe = KnownPathProbe;

std::string Inspect(const std::string& path) { return absl::StrCat("`ckpt inspect ", ShellWord(path), "`"); }
std::string InspectIn(const Probe& probe, const std::string& name) { return Inspect(JoinPath(probe.path, name)); }
std::string Directory(const Probe& probe) { return SplitPath(probe.path).directory; }

bool AnyOf(const std::set<std::string>& names, bool (*is_one)(const std::string& name)) {
  return std::any_of(names.begin(), names.end(), is_one);
}

std::vector<std::string> Those(const std::set<std::string>& names, bool (*are_wanted)(const std::string& name)) {
  std::vector<std::string> those;
  std::copy_if(names.begin(), names.end(), std::back_inserter(those), are_wanted);
  return those;
}

bool IsOrbaxFile(const std::string& name) {
  return name == "_METADATA" || name == "_CHECKPOINT_METADATA" || name == "manifest.ocdbt";
}
bool IsDcpFile(const std::string& name) { return absl::EndsWith(name, ".distcp"); }
bool IsRankMetadata(const std::string& name) {
  return absl::StartsWith(name, "__") && absl::EndsWith(name, ".metadata");
}
bool IsHubModel(const std::string& name) { return absl::StartsWith(name, "models--"); }

// The names below are those that the programs themselves give their files, so a match is no guess; what a match says
// ends with the command to run next.
// "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"; not the one file that has a whole model.
bool IsDeepSpeedRank(const std::string& name) {
  return absl::StrContains(name, "zero_pp_rank_") &&
         (absl::EndsWith(name, "_model_states.pt") || absl::EndsWith(name, "_optim_states.pt"));
}

std::string DeepSpeedRun(const Probe& probe) {
  const std::vector<std::string> checkpoints = probe.Checkpoints();
  if (checkpoints.empty()) return "has DeepSpeed's zero_to_fp32.py, but no checkpoint: give the directory that has one";
  return absl::StrCat("is a run of DeepSpeed without the file `latest`: give a checkpoint of it, ",
                      InspectIn(probe, checkpoints.back()));
}

bool IsGguf(const std::string& name) { return absl::EndsWith(name, ".gguf"); }

bool IsIndex(const std::string& name) { return absl::EndsWith(name, ".index.json"); }

constexpr char kMegatronRankFile[] = "model_optim_rng.pt";
bool IsMegatronRank(const std::string& name) { return absl::StartsWith(name, "mp_rank_"); }

// "model-00001-of-00002.safetensors"
bool IsNumberedPart(const std::string& name) { return absl::StrContains(name, "-of-") && IsWeightFileName(name); }

// Meta's "consolidated.00.pth", and the files of the other ranks in its directory; empty for any other file.
std::vector<std::string> MetaParts(const Probe& probe) {
  const auto is_part = [](const std::string& name) {
    return absl::StartsWith(name, "consolidated.") && absl::EndsWith(name, ".pth");
  };
  if (!is_part(probe.name)) return {};
  std::vector<std::string> parts = PosixFileSystem().List(Directory(probe)).value_or(std::vector<std::string>());
  parts.erase(std::remove_if(parts.begin(), parts.end(), std::not_fn(is_part)), parts.end());
  return RankFileNames(parts);
}

std::string MegatronRank(const std::string& iteration) {
  return absl::StrCat("is one rank's part of a checkpoint of Megatron-Core: give the directory of all ranks, ",
                      Inspect(iteration));
}

std::string MissingDcpMetadata(const Probe& probe) {
  if (AnyOf(probe.files, IsRankMetadata)) {
    return "holds a DCP save without collectives, whose .metadata each rank has for itself: load it with "
           "torch.distributed.checkpoint on as many ranks and save it again with use_collectives=True";
  }
  return "holds .distcp files without DCP's .metadata, which says what is in them: if a copy such as `cp DIR/*` left "
         "the "
         "hidden file out, copy it too; otherwise the save did not finish, because .metadata comes last: give an older "
         "checkpoint";
}

std::string Adapter(const Probe& probe) {
  const std::vector<std::string> weights = probe.Weights();
  return absl::StrCat("is an adapter of PEFT, not a whole model: ",
                      weights.empty() ? "its adapter_model.safetensors is missing"
                                      : absl::StrCat(InspectIn(probe, weights[0]), " reads its tensors"));
}

// The components are directories with one file each, or with an index.
std::string Pipeline(const Probe& probe) {
  std::vector<std::string> components;
  std::string first;
  for (const std::string& directory : probe.directories) {
    std::error_code error;
    const std::string path = JoinPath(probe.path, directory);
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename();
      if (!IsWeightFileName(name)) continue;
      const std::string give = probe.is_checkpoint(path) ? path : JoinPath(path, name);
      if (components.empty()) first = give;
      components.push_back(directory);
      break;
    }
  }
  if (components.empty()) return "is a pipeline of diffusers without the weights of its components: get them first";
  return absl::StrCat("is a pipeline of diffusers with the components ", SomeOf(components), ": give one, ",
                      Inspect(first));
}

std::string HubCache(const Probe& probe) {
  return absl::StrCat("is a model in the cache of the Hugging Face hub: give a snapshot of it, ",
                      Inspect(HubSnapshotOf(probe.path)));
}

std::string HubCaches(const Probe& probe) {
  const std::vector<std::string> models = Those(probe.directories, IsHubModel);
  return absl::StrCat("is the cache of the Hugging Face hub, with ", SomeOf(models), ": give a model's snapshot, ",
                      Inspect(HubSnapshotOf(JoinPath(probe.path, models[0]))));
}

// Files by which others' directories are known.
struct Others {
  std::string_view file;
  std::string_view what;  // with what to do
};

constexpr std::string_view kTensorFlow =
    "TensorFlow: load it with TensorFlow (tf.train.load_checkpoint) and save its variables as safetensors";

// "model.ckpt-1000.data-00000-of-00001", of which `checkpoint` has the name.
bool IsTensorFlowData(const std::string& name) { return absl::StrContains(name, ".data-00000-of-"); }

constexpr std::array kOthers = {
    Others{".snapshot_metadata", "torchsnapshot: restore it with torchsnapshot and save it with torch.save"},
    Others{"checkpoint", kTensorFlow},
    Others{"saved_model.pb", kTensorFlow},
    Others{"tf_model.h5", "Keras: load it with transformers (from_tf=True) and save it with save_pretrained"},
};

// The three files of a checkpoint, or the graph of a SavedModel.
bool IsTensorFlowFile(const Probe& probe) {
  if (probe.name == "saved_model.pb" || IsTensorFlowData(probe.name)) return true;
  if (probe.name != "checkpoint" && !absl::EndsWith(probe.name, ".index")) return false;
  const std::vector<std::string> names = PosixFileSystem().List(Directory(probe)).value_or(std::vector<std::string>());
  return std::any_of(names.begin(), names.end(), IsTensorFlowData);
}

const Others* OthersOf(const Probe& probe) {
  const auto at = std::find_if(kOthers.begin(), kOthers.end(), [&](const Others& others) {
    return probe.HasFile(std::string(others.file)) &&
           (others.file != "checkpoint" || AnyOf(probe.files, IsTensorFlowData));
  });
  return at == kOthers.end() ? nullptr : &*at;
}

// Of names that end in a step the newest.
std::string LastOf(const std::vector<std::string>& names) {
  return *std::max_element(names.begin(), names.end(), IsNaturallyBefore);
}

std::string SeveralCheckpoints(const Probe& probe) {
  const std::vector<std::string> checkpoints = probe.Checkpoints();
  const bool is_one = checkpoints.size() == 1;
  return absl::StrCat("is no checkpoint itself, but holds ", is_one ? "one, " : "several, ", SomeOf(checkpoints),
                      is_one ? ": give it, " : ": give one, ", InspectIn(probe, LastOf(checkpoints)));
}

std::string UncommittedSave(const Probe& probe) {
  return absl::StrCat("holds no checkpoint, only what a save left that was never committed: `ckpt prune ",
                      ShellWord(probe.path), " --keep_last=1 --dry_run` lists it");
}

std::string Below(const Probe& probe) {
  const std::vector<std::string> below = PathsBelow(probe.path, probe.is_checkpoint);
  const bool is_one = below.size() == 1;
  return absl::StrCat("is no checkpoint itself, but has ", is_one ? "one in it, " : "some in it, ", SomeOf(below),
                      is_one ? ": give it, " : ": give one, ", InspectIn(probe, LastOf(below)));
}

std::string NumberedParts(const Probe& probe) {
  const std::vector<std::string> parts = Those(probe.files, IsNumberedPart);
  const bool is_torch = absl::EndsWith(parts[0], ".bin");
  const std::vector<std::string> indexes = Those(probe.files, IsIndex);
  if (!indexes.empty()) {
    return absl::StrCat("holds numbered parts of a model and the indexes ", SomeOf(indexes),
                        ": keep one index, as model.safetensors.index.json or pytorch_model.bin.index.json");
  }
  return absl::StrCat("holds numbered parts of a model, ", SomeOf(parts), ", without their index: get ",
                      is_torch ? "pytorch_model.bin.index.json" : "model.safetensors.index.json",
                      ", which says that they are all of it, or give one part");
}

std::string SeveralFiles(const Probe& probe) {
  const std::vector<std::string> weights = probe.Weights();
  return absl::StrCat("holds ", weights.size(), " files of weights, ", SomeOf(weights),
                      ", and nothing says that they are parts of one checkpoint: give one of the files, ",
                      InspectIn(probe, LastOf(weights)));
}

// Only one model is read.
std::string SeveralGguf(const Probe& probe) {
  const std::vector<std::string> files = Those(probe.files, IsGguf);
  return absl::StrCat("holds several models in GGUF, ", SomeOf(files), ": give one, ", InspectIn(probe, files[0]),
                      "; of a model in parts, any part");
}

std::string OneFile(const Probe& probe) {
  const std::string file = probe.Weights()[0];
  return absl::StrCat("holds one file of weights, ", Printable(file),
                      ", but is read only by names such as model.safetensors: give the file, ", InspectIn(probe, file));
}

// Lists everything in a directory; the first 100,000 names of a very large one.
void List(const std::string& path, Probe& probe) {
  constexpr size_t kMaxNames = 100'000;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    (it->is_directory(ignored) ? probe.directories : probe.files).insert(it->path().filename());
    if (probe.files.size() + probe.directories.size() == kMaxNames) return;
  }
}

}  // namespace

std::vector<std::string> KnownPathProbe::Weights() const {
  std::vector<std::string> models;
  std::vector<std::string> others;
  for (const std::string& file : files) {
    if (IsWeightFileName(file)) (IsTrainerFileName(file) ? others : models).push_back(file);
  }
  return models.empty() ? others : models;
}

std::vector<std::string> KnownPathProbe::Checkpoints() const {
  constexpr int kMaxTried = 64;  // each is listed
  std::vector<std::string> checkpoints;
  int tried = 0;
  for (const std::string& directory : directories) {
    if (absl::StartsWith(directory, ".")) continue;  // of a save in progress, a trash
    if (++tried > kMaxTried) break;
    if (is_checkpoint(JoinPath(path, directory))) checkpoints.push_back(directory);
  }
  return checkpoints;
}

// Tried in order: the first that matches is returned, so a special case is before the general one.
const std::vector<KnownPath>& KnownFiles() {
  static const auto* const files = new std::vector<KnownPath>{
      {"file of DCP", [](const Probe& probe) { return IsDcpFile(probe.name) || probe.name == ".metadata"; },
       [](const Probe& probe) {
         return absl::StrCat("is one file of a DCP directory: give the directory, ", Inspect(Directory(probe)));
       }},
      {"file of DeepSpeed", [](const Probe& probe) { return IsDeepSpeedRank(probe.name); },
       [](const Probe& probe) {
         return absl::StrCat("is one rank's part of a checkpoint of DeepSpeed: give the directory, ",
                             Inspect(Directory(probe)));
       }},
      {"file of Orbax", [](const Probe& probe) { return IsOrbaxFile(probe.name); },
       [](const Probe& probe) {
         return absl::StrCat("is one file of an Orbax checkpoint: give the directory, ", Inspect(Directory(probe)));
       }},
      {"shard of HuggingFaceStorageWriter", [](const Probe& probe) { return IsSafetensorsShardName(probe.name); },
       [](const Probe& probe) {
         return absl::StrCat("is one rank's part of a model by HuggingFaceStorageWriter: give the directory, ",
                             Inspect(Directory(probe)));
       }},
      {"rank of Megatron-Core",
       [](const Probe& probe) {
         return probe.name == kMegatronRankFile && IsMegatronRank(SplitPath(Directory(probe)).name);
       },
       [](const Probe& probe) { return MegatronRank(SplitPath(Directory(probe)).directory); }},
      {"part of torch_checkpointing",
       [](const Probe& probe) { return IsWeightFileName(probe.name) && !ItemDirectoryOf(probe.path).empty(); },
       [](const Probe& probe) {
         return absl::StrCat("is one rank's part of a checkpoint of torch_checkpointing: give the directory, ",
                             Inspect(ItemDirectoryOf(probe.path)));
       }},
      {"part of Meta's model", [](const Probe& probe) { return MetaParts(probe).size() > 1; },
       [](const Probe& probe) {
         return absl::StrCat("is one of the parts ", SomeOf(MetaParts(probe)),
                             " of a model, whose tensors are cut: join them with the program that made them, such as "
                             "transformers' convert_llama_weights_to_hf.py, and give its directory");
       }},
      {"common.pt of Megatron-Core",
       [](const Probe& probe) {
         return probe.name == "common.pt" && HasEntry(Directory(probe), ".metadata").value_or(false);
       },
       [](const Probe& probe) {
         return absl::StrCat("has what a checkpoint of Megatron-Core holds besides tensors: give the directory, ",
                             Inspect(Directory(probe)));
       }},
      {"text of a trainer",
       [](const Probe& probe) {
         return (probe.name == "latest" || probe.name == "latest_checkpointed_iteration.txt") &&
                probe.is_checkpoint(Directory(probe));
       },
       [](const Probe& probe) {
         return absl::StrCat("names the newest checkpoint of a directory: give that, ", Inspect(Directory(probe)));
       }},
      {"file of TensorFlow", IsTensorFlowFile,
       [](const Probe&) { return absl::StrCat("is one file of a checkpoint of ", std::string(kTensorFlow)); }},
      {"JSON of a checkpoint",
       [](const Probe& probe) {
         return absl::EndsWith(probe.name, ".json") && probe.is_checkpoint(Directory(probe)) &&
                CheckIsDownloaded(probe.path).ok();
       },
       [](const Probe& probe) {
         return absl::StrCat("is a text that belongs to a checkpoint: give the directory, ", Inspect(Directory(probe)));
       }},
  };
  return *files;
}

const std::vector<KnownPath>& KnownDirectories() {
  static const auto* const directories = new std::vector<KnownPath>{
      {"DCP without .metadata", [](const Probe& probe) { return AnyOf(probe.files, IsDcpFile); }, MissingDcpMetadata},
      {"PEFT", [](const Probe& probe) { return probe.HasFile(kAdapterConfigName); }, Adapter},
      {"diffusers", [](const Probe& probe) { return probe.HasFile("model_index.json"); }, Pipeline},
      {"model in the hub's cache",
       [](const Probe& probe) {
         return probe.directories.count("snapshots") != 0 &&
                (probe.directories.count("refs") != 0 || IsHubModel(probe.name));
       },
       HubCache},
      {"hub's cache", [](const Probe& probe) { return AnyOf(probe.directories, IsHubModel); }, HubCaches},
      {"DeepSpeed", [](const Probe& probe) { return probe.HasFile("zero_to_fp32.py"); }, DeepSpeedRun},
      {"rank of Megatron-Core",
       [](const Probe& probe) { return IsMegatronRank(probe.name) && probe.HasFile(kMegatronRankFile); },
       [](const Probe& probe) { return MegatronRank(Directory(probe)); }},
      {"GGUF", [](const Probe& probe) { return AnyOf(probe.files, IsGguf); }, SeveralGguf},
      {"others", [](const Probe& probe) { return OthersOf(probe) != nullptr; },
       [](const Probe& probe) { return absl::StrCat("is a checkpoint of ", std::string(OthersOf(probe)->what)); }},
      {"checkpoints", [](const Probe& probe) { return !probe.Checkpoints().empty(); }, SeveralCheckpoints},
      {"parts without an index", [](const Probe& probe) { return AnyOf(probe.files, IsNumberedPart); }, NumberedParts},
      {"files", [](const Probe& probe) { return probe.Weights().size() > 1; }, SeveralFiles},
      {"file", [](const Probe& probe) { return probe.Weights().size() == 1; }, OneFile},
      {"save that was never committed",
       [](const Probe& probe) {
         return AnyOf(probe.directories, [](const std::string& name) { return StagedNameOf(name).has_value(); });
       },
       UncommittedSave},
      {"checkpoints below", [](const Probe& probe) { return !PathsBelow(probe.path, probe.is_checkpoint).empty(); },
       Below},
  };
  return *directories;
}

// Only called when no format recognises the path, so listing a large directory costs nothing on the usual way.
std::string DescribeKnownPath(const PathProbe& path, std::function<bool(const std::string& path)> is_checkpoint) {
  const PathParts parts = SplitPath(path.path);
  Probe probe = {.path = parts.directory == "." ? parts.name : JoinPath(parts.directory, parts.name),
                 .name = parts.name,
                 .is_directory = path.is_directory,
                 .is_checkpoint = std::move(is_checkpoint)};
  if (path.is_directory) List(path.path, probe);
  for (const KnownPath& known : path.is_directory ? KnownDirectories() : KnownFiles()) {
    if (known.matches(probe)) return absl::StrCat(path.path, " ", known.text(probe));
  }
  return "";
}

}  // namespace fsdp
