// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/parity/parity_files.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/format/file_names.h"
#include "checkpoint/parity/parity_code.h"

namespace fsdp {
namespace {

// Runs of all files that one thread has in memory at a time take about so much.
constexpr int64_t kRunsBytes = int64_t{8} << 20;
constexpr int64_t kPage = 4096;

// Bytes of each run; a divisor of kBlockBytes.
int64_t RunBytes(const ParityPlan& plan) {
  const auto files = static_cast<int64_t>(plan.data.size() + plan.parity.size());
  int64_t nbytes = kBlockBytes;
  while (nbytes > kPage && nbytes * files > kRunsBytes) nbytes /= 2;
  return nbytes;
}

struct OpenRun {
  std::unique_ptr<File> file;
  int64_t nbytes = 0;
};

absl::StatusOr<OpenRun> OpenToRead(FileSystem& files, const std::string& directory, const std::string& name) {
  OpenRun open;
  ASSIGN_OR_RETURN(open.file, files.Open(JoinPath(directory, name)));
  ASSIGN_OR_RETURN(open.nbytes, open.file->Size());
  return open;
}

// Bytes [offset, offset + nbytes) of a file that goes on as zeros for ever.
absl::Status ReadPadded(const OpenRun& run, int64_t offset, absl::Span<std::byte> out) {
  const int64_t here = std::clamp<int64_t>(run.nbytes - offset, 0, static_cast<int64_t>(out.size()));
  std::memset(out.data() + here, 0, out.size() - here);
  return here == 0 ? absl::OkStatus() : run.file->Read(offset, out.first(here));
}

// Memory for one run of each of `count` files.
class Runs {
 public:
  Runs(size_t count, int64_t nbytes) : memory_(NewAlignedBlock(static_cast<int64_t>(count) * nbytes)) {
    for (size_t i = 0; i < count; ++i) pointers_.push_back(memory_.get() + static_cast<int64_t>(i) * nbytes);
  }
  std::vector<std::byte*>& pointers() { return pointers_; }
  std::vector<const std::byte*> views() const { return {pointers_.begin(), pointers_.end()}; }

 private:
  AlignedBlock memory_;
  std::vector<std::byte*> pointers_;
};

absl::StatusOr<ParityCode> CodeOf(const ParityPlan& plan) {
  return ParityCode::Create(static_cast<int>(plan.data.size()), static_cast<int>(plan.parity.size()));
}

}  // namespace

int64_t ParityPlan::nbytes() const {
  int64_t longest = 0;
  for (const DataFile& file : data) longest = std::max(longest, file.nbytes);
  return longest;
}

absl::StatusOr<ParityPlan> PlanParity(std::vector<ParityPlan::DataFile> data, int parity) {
  ParityPlan plan;
  plan.data = std::move(data);
  std::sort(plan.data.begin(), plan.data.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (int i = 0; i < parity; ++i) plan.parity.push_back(ParityFileName(i, parity));
  RETURN_IF_ERROR(CodeOf(plan).status());
  return plan;
}

absl::Status CreateParityFiles(FileSystem& files, const std::string& directory, const ParityPlan& plan) {
  for (const std::string& name : plan.parity) {
    ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(JoinPath(directory, name)));
    RETURN_IF_ERROR(file->Reserve(plan.nbytes()));
    RETURN_IF_ERROR(file->Sync());
  }
  return absl::OkStatus();
}

Interval ParityShare(const ParityPlan& plan, int shares, int share) {
  return ChunkOf(BlockCount(plan.nbytes()), shares, share);
}

absl::StatusOr<std::vector<Digest>> WriteParityBlocks(FileSystem& files, const std::string& directory,
                                                      const ParityPlan& plan, const Interval& blocks,
                                                      ThreadPool& pool) {
  std::vector<Digest> digests(blocks.size() * plan.parity.size());
  if (blocks.empty()) return digests;
  ASSIGN_OR_RETURN(const ParityCode code, CodeOf(plan));
  std::vector<OpenRun> data;
  for (const ParityPlan::DataFile& file : plan.data) {
    ASSIGN_OR_RETURN(OpenRun open, OpenToRead(files, directory, file.name));
    data.push_back(std::move(open));
  }
  std::vector<std::unique_ptr<File>> parity;
  for (const std::string& name : plan.parity) {
    ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.OpenToWrite(JoinPath(directory, name)));
    parity.push_back(std::move(file));
  }
  const int64_t run = RunBytes(plan);
  RETURN_IF_ERROR(pool.ParallelFor(blocks.size(), [&](int64_t i) -> absl::Status {
    Runs in(data.size(), run);
    Runs out(parity.size(), run);
    std::vector<DigestBuilder> builders(parity.size());
    const int64_t begin = (blocks.begin + i) * kBlockBytes;
    const int64_t end = std::min(begin + kBlockBytes, plan.nbytes());
    for (int64_t at = begin; at < end; at += run) {
      const int64_t nbytes = std::min(run, end - at);
      for (size_t d = 0; d < data.size(); ++d) {
        RETURN_IF_ERROR(ReadPadded(data[d], at, absl::MakeSpan(in.pointers()[d], nbytes)));
      }
      code.Encode(in.views(), out.pointers(), nbytes);
      for (size_t p = 0; p < parity.size(); ++p) {
        const auto bytes = absl::MakeConstSpan(out.pointers()[p], nbytes);
        builders[p].Update(bytes);
        RETURN_IF_ERROR(parity[p]->Write(at, bytes));
      }
    }
    for (size_t p = 0; p < parity.size(); ++p) digests[p * blocks.size() + i] = builders[p].Finish();
    return absl::OkStatus();
  }));
  for (const std::unique_ptr<File>& file : parity) RETURN_IF_ERROR(file->Sync());
  return digests;
}

void AddParity(const ParityPlan& plan, const std::vector<std::vector<Digest>>& digests, Manifest& manifest) {
  for (const ParityPlan::DataFile& data : plan.data) {
    const auto file = std::find_if(manifest.files.begin(), manifest.files.end(),
                                   [&](const StoredFile& stored) { return stored.name == data.name; });
    manifest.parity.data.push_back(static_cast<int>(file - manifest.files.begin()));
  }
  for (size_t p = 0; p < plan.parity.size(); ++p) {
    StoredFile file;
    file.name = plan.parity[p];
    file.nbytes = plan.nbytes();
    StoredExtent extent = {{0, file.nbytes}, {}};
    for (const std::vector<Digest>& share : digests) {
      const size_t count = share.size() / plan.parity.size();
      extent.digests.insert(extent.digests.end(), share.begin() + p * count, share.begin() + (p + 1) * count);
    }
    file.extents.push_back(std::move(extent));
    file.rest_digest = DigestOf(std::string_view());
    manifest.parity.files.push_back(static_cast<int>(manifest.files.size()));
    manifest.files.push_back(std::move(file));
  }
}

absl::Status RebuildFromParity(FileSystem& files, const std::string& directory, const ParityPlan& plan,
                               const ParityLoss& loss, const std::vector<std::string>& out, ThreadPool& pool) {
  const std::vector<int>& lost = loss.lost;
  ASSIGN_OR_RETURN(const ParityCode code, CodeOf(plan));
  ASSIGN_OR_RETURN(const ParityCode::Decoder decoder, code.NewDecoder(lost, loss.unused));
  const auto name_of = [&](int index) {
    const auto data = static_cast<int>(plan.data.size());
    return index < data ? plan.data[index].name : plan.parity[index - data];
  };
  const auto size_of = [&](int index) {
    return index < static_cast<int>(plan.data.size()) ? plan.data[index].nbytes : plan.nbytes();
  };
  std::vector<OpenRun> present;
  for (const int index : decoder.present()) {
    ASSIGN_OR_RETURN(OpenRun open, OpenToRead(files, directory, name_of(index)));
    present.push_back(std::move(open));
  }
  std::vector<std::unique_ptr<File>> made;
  for (size_t i = 0; i < lost.size(); ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Create(out[i]));
    RETURN_IF_ERROR(file->Reserve(size_of(lost[i])));
    made.push_back(std::move(file));
  }
  const int64_t run = RunBytes(plan);
  RETURN_IF_ERROR(pool.ParallelFor((plan.nbytes() + run - 1) / run, [&](int64_t i) -> absl::Status {
    Runs in(present.size(), run);
    Runs rebuilt(made.size(), run);
    const int64_t at = i * run;
    const int64_t nbytes = std::min(run, plan.nbytes() - at);
    for (size_t d = 0; d < present.size(); ++d) {
      RETURN_IF_ERROR(ReadPadded(present[d], at, absl::MakeSpan(in.pointers()[d], nbytes)));
    }
    decoder.Decode(in.views(), rebuilt.pointers(), nbytes);
    for (size_t k = 0; k < made.size(); ++k) {
      const int64_t here = std::clamp<int64_t>(size_of(lost[k]) - at, 0, nbytes);
      RETURN_IF_ERROR(made[k]->Write(at, absl::MakeConstSpan(rebuilt.pointers()[k], here)));
    }
    return absl::OkStatus();
  }));
  for (const std::unique_ptr<File>& file : made) RETURN_IF_ERROR(file->Sync());
  return absl::OkStatus();
}

}  // namespace fsdp
