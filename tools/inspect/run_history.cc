// SPDX-License-Identifier: Apache-2.0
//
//   1  every step's metadata: which steps are whole, and the layers of all of them
//   2  groups of steps, as many as memory and descriptors allow (GroupEnd)
//   3  the tensors of a group, piece by piece (step_group.h)
#include "fsdp/tools/inspect/run_history.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/unread.h"
#include "fsdp/tools/inspect/checkpoint_layers.h"
#include "fsdp/tools/inspect/step_group.h"
#include "fsdp/tools/inspect/whole_step.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

// The program without payload and metadata, and the pieces of its threads.
constexpr int64_t kProgramBytes = int64_t{32} << 20;

// Descriptors for everything but the files of checkpoints.
constexpr int64_t kOtherDescriptors = 24;

// The most files of one checkpoint that are open at a time (verified_reader.cc).
constexpr int64_t kMaxOpenFiles = 256;

// What it takes to have a step open.
struct StepPrice {
  int64_t descriptors = 0;
  int64_t bytes = 0;
  int64_t payload = 0;
};

int64_t DescriptorLimit() {
  rlimit limit = {};
  // Without an answer, what every system allows.
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 1024;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
}

// Names, places and digests: the manifest, its contents and two indices, as measured with a million tensors.
int64_t MetadataBytes(const Manifest& manifest) {
  int64_t nbytes = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    nbytes += 600 + 3 * std::ssize(tensor.key.fqn) + 64 * std::ssize(tensor.intervals);
  }
  for (const StoredFile& file : manifest.files) {
    for (const StoredExtent& extent : file.extents) nbytes += 64 + 16 * std::ssize(extent.digests);
  }
  for (const StoredText& text : manifest.texts) nbytes += 600 + text.range.nbytes;
  return nbytes;
}

class HistoryReader {
 public:
  HistoryReader(std::string root, const RunHistoryOptions& options)
      : root_(std::move(root)), options_(options), threads_(options.max_memory < (int64_t{256} << 20) ? 1 : 4) {}

  absl::StatusOr<RunHistory> Run() {
    FSDP_RETURN_IF_ERROR(ReadMetadata());
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(threads_, "history"));
    std::vector<size_t> group;  // indices of steps; the first was in the group before, if it is not the first of all
    for (size_t next = 0; next < readable_.size(); next += group.size() - (next == 0 ? 0 : 1)) {
      FSDP_ASSIGN_OR_RETURN(const size_t end, GroupEnd(next));
      group.assign(readable_.begin() + (next == 0 ? 0 : next - 1), readable_.begin() + end);
      FSDP_RETURN_IF_ERROR(ReadGroup(group, next == 0, *pool));
    }
    return Finish();
  }

 private:
  absl::Status ReadMetadata() {
    FSDP_ASSIGN_OR_RETURN(std::vector<RootStep> steps, ListSteps(root_));
    if (steps.size() > kMaxRunSteps) {
      history_.left_out = steps.size() - kMaxRunSteps;
      std::vector<RootStep> some;
      for (size_t i = 0; i < kMaxRunSteps; ++i) some.push_back(steps[i * (steps.size() - 1) / (kMaxRunSteps - 1)]);
      steps = std::move(some);
    }
    std::set<std::string> layers;
    for (const RootStep& step : steps) {
      RunStep& added = history_.steps.emplace_back();
      added.step = step.step;
      added.name = step.name;
      prices_.emplace_back();
      FSDP_RETURN_IF_ERROR(ReadMetadataOf(history_.steps.size() - 1, layers));
    }
    index_ = std::make_unique<LayerIndex>(std::vector<std::string>(layers.begin(), layers.end()));
    history_.layers = index_->Rows();
    return absl::OkStatus();
  }

  absl::Status ReadMetadataOf(size_t at, std::set<std::string>& layers) {
    RunStep& step = history_.steps[at];
    const absl::StatusOr<Manifest> manifest = ReadWholeStep(root_, step.name);
    if (absl::IsResourceExhausted(manifest.status())) return manifest.status();
    if (!manifest.ok()) {
      step.problem = Problem(manifest.status());
      return absl::OkStatus();
    }
    step.world_size = manifest->save.world_size;
    for (const StoredTensor& tensor : manifest->tensors) {
      if (tensor.key.section != Section::kExtra) layers.insert(LayerOf(tensor.key.fqn));
      prices_[at].payload += tensor.shape.numel() * SizeOf(tensor.dtype);
    }
    prices_[at].descriptors = std::min(std::ssize(manifest->files), kMaxOpenFiles);
    // A block for each thread, and one that is kept for the next small tensor.
    prices_[at].bytes = MetadataBytes(*manifest) + (threads_ + 1) * kBlockBytes;
    bytes_total_ += prices_[at].payload;
    readable_.push_back(at);
    return absl::OkStatus();
  }

  // The end of the group that begins with readable_[begin], to which the step before it, if any, is added.
  absl::StatusOr<size_t> GroupEnd(size_t begin) const {
    int64_t descriptors = DescriptorLimit() - kOtherDescriptors;
    int64_t bytes = options_.max_memory - kProgramBytes - threads_ * 2 * StepGroup::kPieceBytes;
    size_t end = begin == 0 ? 0 : begin - 1;
    while (end < readable_.size()) {
      const StepPrice& price = prices_[readable_[end]];
      if (price.descriptors > descriptors || price.bytes > bytes) break;
      descriptors -= price.descriptors;
      bytes -= price.bytes;
      ++end;
    }
    if (end > begin && (end > begin + 1 || begin > 0 || readable_.size() == 1)) return end;
    return TooLarge(begin == 0 ? 0 : begin - 1);
  }

  // Two steps from readable_[first] on are more than what is allowed.
  absl::Status TooLarge(size_t first) const {
    int64_t descriptors = kOtherDescriptors;
    int64_t bytes = kProgramBytes + threads_ * 2 * StepGroup::kPieceBytes;
    for (size_t i = first; i < std::min(first + 2, readable_.size()); ++i) {
      descriptors += prices_[readable_[i]].descriptors;
      bytes += prices_[readable_[i]].bytes;
    }
    const std::string& name = history_.steps[readable_[first]].name;
    if (descriptors > DescriptorLimit()) {
      return absl::ResourceExhaustedError(absl::StrCat(root_, ": ", name, " and the step after it need ", descriptors,
                                                       " descriptors, expected at most the ", DescriptorLimit(),
                                                       " of this process: raise ulimit -n"));
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("RunHistoryOptions::max_memory is ", options_.max_memory >> 20, "MiB, expected at least ",
                     (bytes >> 20) + 1, "MiB, for the names and places of ", name, " and of the step after it"));
  }

  static std::string Problem(const absl::Status& status) {
    return absl::StrCat(IsUnread(status) ? "cannot be read here: " : "does not verify: ",
                        std::string(status.message()));
  }

  // Adds the layers of a group to the history. Its first step was added before, unless `is_first_group`.
  absl::Status ReadGroup(const std::vector<size_t>& group, bool is_first_group, ThreadPool& pool) {
    StepGroup reader(*index_, history_.layers.size());
    std::vector<size_t> opened;
    for (const size_t at : group) {
      absl::StatusOr<std::unique_ptr<TensorSource>> source = OpenTensorSource(JoinPath(root_, history_.steps[at].name));
      if (absl::IsResourceExhausted(source.status())) return source.status();
      if (!source.ok()) {
        history_.steps[at].problem = Problem(source.status());
        continue;
      }
      reader.Add(*std::move(source), /*is_counted=*/is_first_group || at != group.front());
      opened.push_back(at);
    }
    FSDP_RETURN_IF_ERROR(reader.Read(pool, [&](int64_t nbytes) {
      bytes_done_ += nbytes;
      if (options_.progress) options_.progress(std::min(bytes_done_, bytes_total_), bytes_total_);
    }));
    for (size_t i = 0; i < opened.size(); ++i) {
      RunStep& step = history_.steps[opened[i]];
      if (!reader.status(i).ok()) step.problem = Problem(reader.status(i));
      if (is_first_group || opened[i] != group.front()) step.layers = reader.layers(i);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RunHistory> Finish() {
    std::vector<std::string> reasons;
    bool any = false;
    bool is_after_problem = false;
    for (RunStep& step : history_.steps) {
      if (!step.problem.empty()) {
        step.layers.clear();
        reasons.push_back(absl::StrCat("; ", step.name, " ", step.problem));
      } else if (is_after_problem) {
        // Its values were compared with damaged ones, or with older ones for some tensors.
        for (LayerAtStep& layer : step.layers) layer.has_change = false;
      }
      is_after_problem = !step.problem.empty();
      any = any || step.problem.empty();
    }
    if (any) return std::move(history_);
    return absl::NotFoundError(absl::StrCat(
        root_, " holds no checkpoint", history_.steps.empty() ? "" : " that verifies", absl::StrJoin(reasons, "")));
  }

  const std::string root_;
  const RunHistoryOptions& options_;
  const int threads_;
  RunHistory history_;
  std::vector<StepPrice> prices_;  // by index of the step
  std::vector<size_t> readable_;   // indices of the steps whose metadata are whole
  std::unique_ptr<LayerIndex> index_;
  int64_t bytes_done_ = 0;
  int64_t bytes_total_ = 0;
};

}  // namespace

double LayerAtStep::norm() const { return std::sqrt(squares); }

std::optional<double> LayerAtStep::change() const {
  if (!has_change) return std::nullopt;
  if (squares_changed == 0) return 0;
  if (squares_before == 0) return std::nullopt;
  return std::sqrt(squares_changed) / std::sqrt(squares_before);
}

void LayerAtStep::Add(const LayerAtStep& other) {
  numel += other.numel;
  squares += other.squares;
  nonfinite.Add(other.nonfinite);
  squares_before += other.squares_before;
  squares_changed += other.squares_changed;
  has_change = has_change || other.has_change;
}

LayerAtStep RunStep::model() const {
  LayerAtStep sum;
  for (const LayerAtStep& layer : layers) sum.Add(layer);
  return sum;
}

absl::StatusOr<RunHistory> ReadRunHistory(const std::string& root, const RunHistoryOptions& options) {
  if (options.max_memory < kMinRunHistoryMemory) {
    return absl::InvalidArgumentError(absl::StrCat("RunHistoryOptions::max_memory is ", options.max_memory,
                                                   ", expected at least ", kMinRunHistoryMemory >> 20, "MiB"));
  }
  return HistoryReader(root, options).Run();
}

}  // namespace fsdp
