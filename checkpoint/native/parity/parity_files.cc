// SPDX-License-Identifier: Apache-2.0
//
// How parity is written. The unit of work is a block (kBlockBytes) of every parity file, the same block that manifests
// have a digest of. It is computed run by run: a run is the same byte range of every file, small enough that the runs
// of all files together stay near kRunsBytes.
//
//      rank files (O_DIRECT reads)     memory of one thread                 parity files (O_DIRECT writes)
//        [ run i + 1 ]  ----------->   [ other half of DataRuns ]
//                                      [ run i of every rank file ] --+
//                                      [ block of each parity file ] <+ Encode, digest  ----> WriteQueue
//
// Each thread reads the next run while it encodes the current one, and hands finished blocks to its write queues. So
// memory is bounded (ParityMemory) for any number and size of files, and disk and CPU work at the same time.
#include "fsdp/checkpoint/native/parity/parity_files.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/parity/parity_code.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/read_queue.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {
namespace {

// About how much memory the runs of all files at one offset take. A thread that encodes has two such sets, and blocks
// of parity in flight in addition.
constexpr int64_t kRunsBytes = int64_t{8} << 20;

// Bytes of a run for `files` files: a divisor of kBlockBytes, at least a page.
int64_t RunBytes(int64_t files) {
  int64_t nbytes = kBlockBytes;
  while (nbytes > kPageBytes && nbytes * files > kRunsBytes) nbytes /= 2;
  return nbytes;
}

int64_t RunBytes(const ParityPlan& plan) {
  return RunBytes(static_cast<int64_t>(plan.data.size() + plan.parity.size()));
}

struct OpenRun {
  std::shared_ptr<const File> file;
  int64_t nbytes = 0;
};

absl::StatusOr<OpenRun> OpenToRead(FileSystem& files, const std::string& directory, const std::string& name) {
  OpenRun open;
  FSDP_ASSIGN_OR_RETURN(open.file, files.Open(JoinPath(directory, name)));
  FSDP_ASSIGN_OR_RETURN(open.nbytes, open.file->Size());
  return open;
}

// Fills `out` from byte `offset` of the file, with zeros after its end.
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

// Reads the data files run by run, with double buffering: while one run is encoded, the next one is read.
class DataRuns {
 public:
  DataRuns(const std::vector<OpenRun>& data, int64_t run_bytes)
      : data_(data),
        memory_{Runs(data.size(), run_bytes), Runs(data.size(), run_bytes)},
        queue_(static_cast<int>(2 * data.size())) {}

  // Starts to read bytes `range` of all files. At most two runs are started and not yet finished.
  void Start(const ByteRange& range) {
    Runs& memory = memory_[started_++ % 2];
    for (size_t i = 0; i < data_.size(); ++i) {
      const int64_t here = BytesHere(i, range);
      if (here > 0) queue_.Start(data_[i].file, {range.offset, here}, memory.pointers()[i]);
    }
  }

  // Waits for the oldest run that was started, `range`, and returns its bytes by file. They are valid until two more
  // runs have been started.
  absl::StatusOr<std::vector<const std::byte*>> Finish(const ByteRange& range) {
    Runs& memory = memory_[finished_++ % 2];
    for (size_t i = 0; i < data_.size(); ++i) {
      const int64_t here = BytesHere(i, range);
      if (here > 0) FSDP_RETURN_IF_ERROR(queue_.Finish().status());
      // A shorter file counts as zeros after its end; the buffer still has bytes of an earlier run.
      std::memset(memory.pointers()[i] + here, 0, range.nbytes - here);
    }
    return memory.views();
  }

 private:
  int64_t BytesHere(size_t i, const ByteRange& range) const {
    return std::clamp<int64_t>(data_[i].nbytes - range.offset, 0, range.nbytes);
  }

  const std::vector<OpenRun>& data_;
  std::array<Runs, 2> memory_;
  int64_t started_ = 0;
  int64_t finished_ = 0;
  ReadQueue queue_;  // the last member: destroyed before the memory that it reads into
};

// Blocks of parity that each thread has in flight for each parity file.
int64_t DepthOf(int64_t parity) { return std::clamp<int64_t>(4 / parity, 1, 3); }

absl::StatusOr<ParityCode> CodeOf(const ParityPlan& plan) {
  return ParityCode::Create(static_cast<int>(plan.data.size()), static_cast<int>(plan.parity.size()));
}

// The state that the threads of WriteParityBlocks share.
struct Encoding {
  const ParityPlan& plan;
  const ParityCode& code;
  const Interval& blocks;
  std::vector<OpenRun> data = {};
  std::deque<WriteQueues> queues = {};  // of the parity files
};

// Makes one block of all parity files from `runs`, the runs of this block; the first of them has been started in
// `data`. Starts `next`, the first run of the thread's next block, while it encodes the last one. The digest of parity
// file p goes to digests[p * stride].
absl::Status EncodeBlock(Encoding& shared, const std::vector<ByteRange>& runs, const std::optional<ByteRange>& next,
                         DataRuns& data, Digest* digests, int64_t stride) {
  const size_t count = shared.queues.size();
  std::vector<std::unique_ptr<WriteQueue>> queues;
  std::vector<std::byte*> out;
  std::vector<DigestBuilder> builders(count);
  for (WriteQueues& all : shared.queues) {
    queues.push_back(all.Take());
    FSDP_ASSIGN_OR_RETURN(std::byte* const buffer, queues.back()->Buffer());
    out.push_back(buffer);
  }
  const std::vector<std::byte*> blocks = out;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i + 1 < runs.size()) data.Start(runs[i + 1]);
    if (i + 1 == runs.size() && next) data.Start(*next);
    FSDP_ASSIGN_OR_RETURN(const std::vector<const std::byte*> in, data.Finish(runs[i]));
    shared.code.Encode(in, out, runs[i].nbytes);
    for (size_t p = 0; p < count; ++p) {
      builders[p].Update(absl::MakeConstSpan(out[p], runs[i].nbytes));
      out[p] += runs[i].nbytes;
    }
  }
  const int64_t nbytes = runs.back().end() - runs.front().offset;
  for (size_t p = 0; p < count; ++p) {
    digests[static_cast<int64_t>(p) * stride] = builders[p].Finish();
    FSDP_RETURN_IF_ERROR(queues[p]->Write(runs.front().offset, absl::MakeConstSpan(blocks[p], nbytes)));
    shared.queues[p].Give(std::move(queues[p]));
  }
  return absl::OkStatus();
}

std::vector<ByteRange> RunsOf(const ParityPlan& plan, int64_t block) {
  const int64_t run = RunBytes(plan);
  const int64_t end = std::min((block + 1) * kBlockBytes, plan.nbytes());
  std::vector<ByteRange> runs;
  for (int64_t at = block * kBlockBytes; at < end; at += run) runs.push_back({at, std::min(run, end - at)});
  return runs;
}

// The share of thread `thread` of `threads`: every `threads`-th block, so that together they pass through the files
// from beginning to end.
absl::Status EncodeShare(Encoding& shared, int64_t thread, int64_t threads, std::vector<Digest>& digests) {
  DataRuns data(shared.data, RunBytes(shared.plan));
  const int64_t count = shared.blocks.size();
  if (thread < count) data.Start(RunsOf(shared.plan, shared.blocks.begin + thread).front());
  for (int64_t i = thread; i < count; i += threads) {
    std::optional<ByteRange> next;
    if (i + threads < count) next = RunsOf(shared.plan, shared.blocks.begin + i + threads).front();
    FSDP_RETURN_IF_ERROR(
        EncodeBlock(shared, RunsOf(shared.plan, shared.blocks.begin + i), next, data, &digests[i], count));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ParityPlan::nbytes() const {
  int64_t longest = 0;
  for (const DataFile& file : data) longest = std::max(longest, file.nbytes);
  return longest;
}

absl::StatusOr<ParityPlan> PlanParity(std::vector<ParityPlan::DataFile> data, int parity) {
  // First, because it bounds `parity`.
  FSDP_RETURN_IF_ERROR(ParityCode::Create(static_cast<int>(data.size()), parity).status());
  ParityPlan plan;
  plan.data = std::move(data);
  std::sort(plan.data.begin(), plan.data.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (int i = 0; i < parity; ++i) plan.parity.push_back(ParityFileName(i, parity));
  return plan;
}

absl::Status CreateParityFiles(FileSystem& files, const std::string& directory, const ParityPlan& plan) {
  for (const std::string& name : plan.parity) {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(JoinPath(directory, name)));
    // Reserved by one process before several write: a full disk is noticed here, and the size is final.
    FSDP_RETURN_IF_ERROR(file->Reserve(plan.nbytes()));
    FSDP_RETURN_IF_ERROR(file->Sync());
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
  FSDP_ASSIGN_OR_RETURN(const ParityCode code, CodeOf(plan));
  std::vector<std::unique_ptr<File>> parity;
  Encoding shared = {plan, code, blocks};
  for (const ParityPlan::DataFile& file : plan.data) {
    FSDP_ASSIGN_OR_RETURN(OpenRun open, OpenToRead(files, directory, file.name));
    shared.data.push_back(std::move(open));
  }
  for (const std::string& name : plan.parity) {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.OpenToWrite(JoinPath(directory, name)));
    shared.queues.emplace_back(*file, static_cast<int>(DepthOf(static_cast<int64_t>(plan.parity.size()))));
    parity.push_back(std::move(file));
  }
  FSDP_RETURN_IF_ERROR(pool.ParallelFor(
      pool.threads(), [&](int64_t thread) { return EncodeShare(shared, thread, pool.threads(), digests); }));
  // Only the last block of a file ends within a page and goes through the page cache; no other process writes that
  // page.
  for (WriteQueues& queues : shared.queues) FSDP_RETURN_IF_ERROR(queues.Drain());
  for (WriteQueues& queues : shared.queues) FSDP_RETURN_IF_ERROR(queues.Finish());
  for (const std::unique_ptr<File>& file : parity) FSDP_RETURN_IF_ERROR(file->Sync());
  return digests;
}

int64_t ParityMemory(int64_t data, int64_t parity, int threads) {
  if (parity == 0) return 0;
  return threads * (2 * data * RunBytes(data + parity) + parity * DepthOf(parity) * kBlockBytes);
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
      // A share is [parity files, blocks]; shares follow each other in the order of blocks.
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
  FSDP_ASSIGN_OR_RETURN(const ParityCode code, CodeOf(plan));
  FSDP_ASSIGN_OR_RETURN(const ParityCode::Decoder decoder, code.NewDecoder(lost, loss.unused));
  const auto name_of = [&](int index) {
    const auto data = static_cast<int>(plan.data.size());
    return index < data ? plan.data[index].name : plan.parity[index - data];
  };
  const auto size_of = [&](int index) {
    return index < static_cast<int>(plan.data.size()) ? plan.data[index].nbytes : plan.nbytes();
  };
  std::vector<OpenRun> present;
  for (const int index : decoder.present()) {
    FSDP_ASSIGN_OR_RETURN(OpenRun open, OpenToRead(files, directory, name_of(index)));
    present.push_back(std::move(open));
  }
  std::vector<std::unique_ptr<File>> made;
  for (size_t i = 0; i < lost.size(); ++i) {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Create(out[i]));
    FSDP_RETURN_IF_ERROR(file->Reserve(size_of(lost[i])));
    made.push_back(std::move(file));
  }
  const int64_t run = RunBytes(plan);
  FSDP_RETURN_IF_ERROR(pool.ParallelFor((plan.nbytes() + run - 1) / run, [&](int64_t i) -> absl::Status {
    Runs in(present.size(), run);
    Runs rebuilt(made.size(), run);
    const int64_t at = i * run;
    const int64_t nbytes = std::min(run, plan.nbytes() - at);
    // Plain reads and a buffer per run, without double buffering: a repair is rare, and memory stays bounded.
    for (size_t d = 0; d < present.size(); ++d) {
      FSDP_RETURN_IF_ERROR(ReadPadded(present[d], at, absl::MakeSpan(in.pointers()[d], nbytes)));
    }
    decoder.Decode(in.views(), rebuilt.pointers(), nbytes);
    for (size_t k = 0; k < made.size(); ++k) {
      const int64_t here = std::clamp<int64_t>(size_of(lost[k]) - at, 0, nbytes);
      FSDP_RETURN_IF_ERROR(made[k]->Write(at, absl::MakeConstSpan(rebuilt.pointers()[k], here)));
    }
    return absl::OkStatus();
  }));
  for (const std::unique_ptr<File>& file : made) FSDP_RETURN_IF_ERROR(file->Sync());
  return absl::OkStatus();
}

}  // namespace fsdp
