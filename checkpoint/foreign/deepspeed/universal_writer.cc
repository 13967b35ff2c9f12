// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/universal_writer.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"
#include "fsdp/checkpoint/foreign/deepspeed/universal_encoding.h"
#include "fsdp/checkpoint/foreign/deepspeed/universal_plan.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/staged_path.h"

namespace fsdp {
namespace {

int64_t BytesOf(const StateDict::Entry& entry) {
  const auto& tensor = std::get<ShardedTensor>(entry.second);
  return tensor.shape.numel() * SizeOf(tensor.dtype);
}

// TorchWriteOptions::progress for many files: the sum over all of them.
class ProgressOfFiles {
 public:
  ProgressOfFiles(std::function<void(int64_t, int64_t)> report, int64_t total)
      : report_(std::move(report)), total_(total) {}

  // For one file.
  std::function<void(int64_t, int64_t)> NewFile() {
    if (!report_) return {};
    return [this, last = int64_t{0}](int64_t done, int64_t) mutable {
      const std::lock_guard<std::mutex> lock(mutex_);
      done_ += done - last;
      last = done;
      report_(std::min(done_, total_), total_);
    };
  }

 private:
  const std::function<void(int64_t, int64_t)> report_;
  const int64_t total_;
  std::mutex mutex_;
  int64_t done_ = 0;  // guarded by mutex_
};

// A file with one tensor of a parameter, which is one of its states, or fp32.pt.
struct TensorFile {
  static constexpr uint32_t kFp32 = UINT32_MAX;

  uint32_t parameter = 0;  // into UniversalPlan::parameters
  uint32_t state = kFp32;
};

class Writer {
 public:
  Writer(const StateDict& contents, const UniversalRun& run, const PayloadReader& read,
         const TorchWriteOptions& options)
      : contents_(contents), run_(run), read_(read), options_(options), files_(*options.file_system) {}

  absl::Status Write(const std::string& path) {
    FSDP_ASSIGN_OR_RETURN(plan_, PlanUniversal(contents_));
    FSDP_RETURN_IF_ERROR(CheckExtrasOfUniversal(contents_));
    FSDP_RETURN_IF_ERROR(ReadSteps());
    progress_.emplace(options_.progress, TotalBytes());
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                          StagedPath::CreateDirectory(files_, path, {.overwrite = options_.overwrite}));
    const std::string name = UniversalTagName(std::max<int64_t>(run_.step, 0));
    const std::string tag = JoinPath(staged->path(), name);
    FSDP_RETURN_IF_ERROR(files_.MakeDirectory(tag));
    FSDP_RETURN_IF_ERROR(WriteModel(tag));
    FSDP_RETURN_IF_ERROR(WriteZero(JoinPath(tag, kDeepSpeedZero)));
    FSDP_RETURN_IF_ERROR(files_.SyncDirectory(tag));
    FSDP_RETURN_IF_ERROR(WriteText(JoinPath(staged->path(), kDeepSpeedLatestUniversal), name));
    return staged->Commit();
  }

 private:
  // Steps are compared, and the step of ZeRO 3 is in another file too: they are in memory, so each is read once.
  absl::Status ReadSteps() {
    steps_.resize(plan_.parameters.size());
    for (const UniversalGroup& group : plan_.groups) {
      const UniversalParameter* first = nullptr;
      for (const size_t number : group.parameters) {
        const UniversalParameter& parameter = plan_.parameters[number];
        if (parameter.step == nullptr) continue;
        FSDP_ASSIGN_OR_RETURN(steps_[number], ReadStep(*parameter.step));
        if (first == nullptr) {
          first = &parameter;
          if (!step_) step_ = steps_[number];
        }
        if (steps_[number]->bytes == steps_[first - plan_.parameters.data()]->bytes) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(Describe(parameter.step->first), " differs from the step of ", Quote(first->name),
                         ", which is in the same group: DeepSpeed counts the steps of a group once"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<LiteralTensor> ReadStep(const StateDict::Entry& entry) const {
    if (const auto* const text = std::get_if<std::string>(&entry.second)) {
      const ScalarOfText number = *ScalarOfState("step", *text);  // PlanUniversal has no other texts
      return LiteralTensor{number.dtype, Shape(), number.bytes};
    }
    const auto& tensor = std::get<ShardedTensor>(entry.second);
    LiteralTensor step = {tensor.dtype, tensor.shape, std::string(SizeOf(tensor.dtype), '\0')};
    FSDP_RETURN_IF_ERROR(read_(entry.first, {0, 1}, step.bytes.data()));
    return step;
  }

  int64_t TotalBytes() const {
    int64_t total = 0;
    for (const auto& [key, value] : contents_.entries()) {
      if (const auto* const tensor = std::get_if<ShardedTensor>(&value)) {
        total += tensor->shape.numel() * SizeOf(tensor->dtype);
      }
    }
    return total;
  }

  absl::Status WriteModel(const std::string& tag) {
    FSDP_ASSIGN_OR_RETURN(TorchArchivePlan archive, EncodeUniversalModel(plan_, contents_, run_.step, run_.world_size));
    const std::string path = JoinPath(tag, kDeepSpeedModelFile);
    FSDP_RETURN_IF_ERROR(WriteArchive(path, std::move(archive), options_));
    return Copy(path, JoinPath(tag, kDeepSpeedZero3ModelFile));
  }

  absl::Status WriteZero(const std::string& zero) {
    FSDP_RETURN_IF_ERROR(files_.MakeDirectory(zero));
    FSDP_ASSIGN_OR_RETURN(TorchArchivePlan optimizer, EncodeUniversalOptimizer(plan_, contents_, step_));
    FSDP_RETURN_IF_ERROR(WriteArchive(JoinPath(zero, kDeepSpeedOptimizerState), std::move(optimizer), options_));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(options_.io_threads, "universal"));
    for (const UniversalParameter& parameter : plan_.parameters) {
      FSDP_RETURN_IF_ERROR(files_.MakeDirectory(JoinPath(zero, parameter.name)));
    }
    TorchWriteOptions one_thread = options_;
    one_thread.io_threads = 1;
    one_thread.buffer_bytes = kBlockBytes;
    const std::vector<TensorFile> small = FilesOf([](int64_t nbytes) { return nbytes < kBlockBytes; });
    FSDP_RETURN_IF_ERROR(
        pool->ParallelFor(std::ssize(small), [&](int64_t i) { return WriteTensor(zero, small[i], one_thread); }));
    for (const TensorFile& file : FilesOf([](int64_t nbytes) { return nbytes >= kBlockBytes; })) {
      FSDP_RETURN_IF_ERROR(WriteTensor(zero, file, options_));
    }
    FSDP_RETURN_IF_ERROR(pool->ParallelFor(std::ssize(plan_.parameters), [&](int64_t i) -> absl::Status {
      const std::string folder = JoinPath(zero, plan_.parameters[i].name);
      if (steps_[i]) {
        FSDP_RETURN_IF_ERROR(WriteArchive(JoinPath(folder, "step.pt"), EncodeUniversalStep(*steps_[i]), one_thread));
      }
      return files_.SyncDirectory(folder);
    }));
    return files_.SyncDirectory(zero);
  }

  // The files of tensors whose payload is of such a size.
  std::vector<TensorFile> FilesOf(const std::function<bool(int64_t nbytes)>& is_wanted) const {
    std::vector<TensorFile> files;
    for (uint32_t i = 0; i < plan_.parameters.size(); ++i) {
      const UniversalParameter& parameter = plan_.parameters[i];
      if (is_wanted(BytesOf(*parameter.fp32))) files.push_back({i, TensorFile::kFp32});
      for (uint32_t k = 0; k < parameter.states.size(); ++k) {
        if (is_wanted(BytesOf(*parameter.states[k].second))) files.push_back({i, k});
      }
    }
    return files;
  }

  absl::Status WriteTensor(const std::string& zero, const TensorFile& file, const TorchWriteOptions& options) {
    const UniversalParameter& parameter = plan_.parameters[file.parameter];
    const bool is_fp32 = file.state == TensorFile::kFp32;
    const std::string name = absl::StrCat(is_fp32 ? "fp32" : parameter.states[file.state].first, ".pt");
    const StateDict::Entry& entry = is_fp32 ? *parameter.fp32 : *parameter.states[file.state].second;
    return WriteArchive(JoinPath(JoinPath(zero, parameter.name), name), EncodeUniversalTensor(entry), options);
  }

  absl::Status WriteArchive(const std::string& path, TorchArchivePlan archive, TorchWriteOptions options) {
    options.progress = progress_->NewFile();
    std::vector<TorchArchivePlan> archives;
    archives.push_back(std::move(archive));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Create(path));
    return WriteTorchArchives(*file, archives, read_, options);
  }

  absl::Status Copy(const std::string& from, const std::string& to) {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> source, files_.Open(from));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> target, files_.Create(to));
    FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, source->Size());
    std::vector<std::byte> block(std::min(nbytes, kBlockBytes));
    for (int64_t begin = 0; begin < nbytes; begin += kBlockBytes) {
      const auto part = absl::MakeSpan(block).first(std::min(kBlockBytes, nbytes - begin));
      FSDP_RETURN_IF_ERROR(source->Read(begin, part));
      FSDP_RETURN_IF_ERROR(target->Write(begin, part));
    }
    return target->Sync();
  }

  absl::Status WriteText(const std::string& path, const std::string& text) {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Create(path));
    FSDP_RETURN_IF_ERROR(
        file->Write(0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())));
    return file->Sync();
  }

  const StateDict& contents_;
  const UniversalRun run_;
  const PayloadReader& read_;
  const TorchWriteOptions& options_;
  FileSystem& files_;
  UniversalPlan plan_;
  std::vector<std::optional<LiteralTensor>> steps_;  // of each parameter
  std::optional<LiteralTensor> step_;                // of the first
  std::optional<ProgressOfFiles> progress_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> CheckUniversal(const StateDict& contents) {
  FSDP_ASSIGN_OR_RETURN(UniversalPlan plan, PlanUniversal(contents));
  FSDP_RETURN_IF_ERROR(CheckExtrasOfUniversal(contents));
  return std::move(plan.notes);
}

absl::Status WriteUniversal(const std::string& path, const StateDict& contents, const UniversalRun& run,
                            const PayloadReader& read, const TorchWriteOptions& options) {
  return Writer(contents, run, read, options).Write(path);
}

}  // namespace fsdp
