// SPDX-License-Identifier: Apache-2.0
//
// First names, in one thread: each key of A is resolved in B, by the aliases of both, and what B has beyond that is
// resolved in A. Every pair of tensors is then cut into pieces at A's blocks, and the pieces are compared on the
// threads of a pool: each task reads its elements from both sides. Small pieces are joined up to kPieceBytes, since B's
// blocks lie elsewhere and are read in part by two neighbouring pieces. Memory is two pieces per thread, however large
// the checkpoints are.
#include "fsdp/checkpoint/diff.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/safetensors/safetensors_metadata.h"
#include "fsdp/checkpoint/source/expansion.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

// A piece begins anywhere in a block of B, so that block is read for two pieces: the larger the pieces, the less is
// read twice.
constexpr int64_t kPieceBytes = int64_t{16} << 20;

bool IsCompared(const StateKey& key, const DiffOptions& options) {
  return !options.model_only || key.section == Section::kModel;
}

// The contents of `source`. The metadata of safetensors is an extra text in checkpoints of ours and in no other format.
StateDict ContentsOf(const TensorSource& source, const TensorSource& other) {
  StateDict contents = source.contents();
  if (other.keeps_metadata()) KeepSafetensorsMetadata(source.metadata(), contents);
  return contents;
}

// The keys of a tensor in A and in B.
struct Pair {
  StateKey a;
  StateKey b;
};

// Elements of the tensor of pair `pair`.
struct Piece {
  size_t pair = 0;
  Interval interval;
};

class Diff {
 public:
  Diff(const TensorSource& a, const TensorSource& b, const DiffOptions& options)
      : a_(a), b_(b), in_a_(ContentsOf(a, b)), in_b_(ContentsOf(b, a)), options_(options) {}

  absl::StatusOr<DiffReport> Run() {
    CompareNames();
    CompareAliases();
    for (size_t i = 0; i < pairs_.size(); ++i) AddPieces(i);
    FSDP_RETURN_IF_ERROR(ComparePieces());
    for (const TensorDiff& tensor : report_.tensors) report_.total.Add(tensor.values);
    return std::move(report_);
  }

 private:
  void CompareNames() {
    std::set<StateKey> met;  // keys of B that some key of A has resolved to
    for (const auto& [key, value] : in_a_.entries()) {
      if (!IsCompared(key, options_)) continue;
      // B may hold a tied weight under a name that only A knows to be its alias.
      const StateKey other = in_b_.Resolve(key, in_a_.aliases).value_or(key);
      met.insert(other);
      if (!in_b_.contains(other)) {
        report_.only_in_a.push_back(key.ToString());
      } else if (const ShardedTensor* tensor = std::get_if<ShardedTensor>(&value)) {
        CompareTensor(key, *tensor, other);
      } else {
        CompareText(key, std::get<std::string>(value), other);
      }
    }
    for (const auto& [key, value] : in_b_.entries()) {
      if (!IsCompared(key, options_) || met.count(key) != 0) continue;
      const StateKey other = in_a_.Resolve(key).value_or(key);
      const ShardedTensor* tensor = in_a_.FindTensor(other);
      if (tensor != nullptr) {  // A has it under another name
        CompareTensor(other, *tensor, key);
      } else if (!in_a_.contains(other)) {
        report_.only_in_b.push_back(key.ToString());
      }
    }
  }

  void CompareTensor(const StateKey& key, const ShardedTensor& tensor, const StateKey& other_key) {
    const ShardedTensor* other = in_b_.FindTensor(other_key);
    if (other == nullptr) {
      report_.structure.push_back(absl::StrCat(Quote(key.ToString()), " is a tensor in A and a text in B"));
      return;
    }
    report_.tensors.push_back(
        {key.ToString(), tensor.dtype, other->dtype, tensor.shape, other->shape, ValueDifference()});
    pairs_.push_back({key, other_key});
  }

  void CompareText(const StateKey& key, const std::string& text, const StateKey& other_key) {
    const std::string* other = in_b_.FindText(other_key);
    const std::string name = Quote(key.ToString());
    if (other == nullptr) {
      report_.structure.push_back(absl::StrCat(name, " is a text in A and a tensor in B"));
    } else if (*other != text) {
      const size_t at = std::mismatch(text.begin(), text.end(), other->begin(), other->end()).first - text.begin();
      const size_t from = at - std::min<size_t>(at, 16);
      report_.structure.push_back(absl::StrCat("text ", name, " differs from byte ", at,
                                               " on: ", Quote(text.substr(from, 48)), " in A, ",
                                               Quote(other->substr(from, 48)), " in B"));
    }
  }

  void CompareAliases() {
    // Other formats write tied weights once or twice and do not record which names are tied.
    if (!a_.is_ours() || !b_.is_ours()) return;
    const auto& in_a = in_a_.aliases;
    const auto& in_b = in_b_.aliases;
    const auto say = [&](const std::string& alias, const auto& here, const char* side, const auto& there) {
      const auto other = there.find(alias);
      if (other != there.end() && other->second == here.at(alias)) return;
      report_.structure.push_back(
          absl::StrCat(Quote(alias), " is an alias of ", Quote(here.at(alias)), " in ", side, " only"));
    };
    for (const auto& [alias, target] : in_a) say(alias, in_a, "A", in_b);
    for (const auto& [alias, target] : in_b) say(alias, in_b, "B", in_a);
  }

  // Adds the pieces of a pair, cut at A's blocks, so that no block of A is read twice.
  void AddPieces(size_t pair) {
    const TensorDiff& tensor = report_.tensors[pair];
    if (tensor.shape_a != tensor.shape_b) return;
    const int64_t size = std::max(SizeOf(tensor.dtype_a), SizeOf(tensor.dtype_b));
    const Interval whole = {0, tensor.shape_a.numel()};
    Interval gathered = {0, 0};
    for (const Interval& piece : a_.Pieces(pairs_[pair].a, whole)) {
      if (!gathered.empty() && (piece.end - gathered.begin) * size > kPieceBytes) {
        pieces_.push_back({pair, gathered});
        gathered = piece;
      }
      gathered = {gathered.empty() ? piece.begin : gathered.begin, piece.end};
    }
    if (!gathered.empty()) pieces_.push_back({pair, gathered});
    bytes_total_ += whole.size() * (SizeOf(tensor.dtype_a) + SizeOf(tensor.dtype_b));
  }

  absl::Status ComparePieces() {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(options_.io_threads, "diff"));
    // Added up in order at the end, so that floating-point sums do not depend on timing.
    std::vector<ValueDifference> differences(pieces_.size());
    FSDP_RETURN_IF_ERROR(pool->ParallelFor(static_cast<int64_t>(pieces_.size()),
                                           [&](int64_t i) { return ComparePiece(pieces_[i], differences[i]); }));
    for (size_t i = 0; i < pieces_.size(); ++i) report_.tensors[pieces_[i].pair].values.Add(differences[i]);
    return absl::OkStatus();
  }

  absl::Status ComparePiece(const Piece& piece, ValueDifference& difference) {
    const TensorDiff& tensor = report_.tensors[piece.pair];
    const int64_t numel = piece.interval.size();
    const int64_t bytes_a = numel * SizeOf(tensor.dtype_a);
    const int64_t bytes_b = numel * SizeOf(tensor.dtype_b);
    const std::unique_ptr<std::byte[]> in_a(new std::byte[bytes_a]);
    const std::unique_ptr<std::byte[]> in_b(new std::byte[bytes_b]);
    FSDP_RETURN_IF_ERROR(a_.Read(pairs_[piece.pair].a, piece.interval, in_a.get()));
    FSDP_RETURN_IF_ERROR(b_.Read(pairs_[piece.pair].b, piece.interval, in_b.get()));
    FSDP_RETURN_IF_ERROR(CompareElements({tensor.dtype_a, in_a.get()}, {tensor.dtype_b, in_b.get()},
                                         piece.interval.begin, numel, options_.tolerance, difference));
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_done_ += bytes_a + bytes_b;
    if (options_.progress) options_.progress(bytes_done_, bytes_total_);
    return absl::OkStatus();
  }

  const TensorSource& a_;
  const TensorSource& b_;
  const StateDict in_a_;
  const StateDict in_b_;
  const DiffOptions& options_;
  DiffReport report_;
  std::vector<Pair> pairs_;  // by index of report_.tensors
  std::vector<Piece> pieces_;
  int64_t bytes_total_ = 0;

  std::mutex mutex_;
  int64_t bytes_done_ = 0;  // guarded by mutex_
};

}  // namespace

bool DiffReport::equal() const {
  return only_in_a.empty() && only_in_b.empty() && structure.empty() &&
         std::all_of(tensors.begin(), tensors.end(), [](const TensorDiff& tensor) { return tensor.equal(); });
}

absl::StatusOr<DiffReport> DiffCheckpoints(const TensorSource& a, const TensorSource& b, const DiffOptions& options) {
  for (const TensorSource* source : {&a, &b}) {
    const Expansion expansion = ExpansionOf(*source, [&](const StateKey& key) { return IsCompared(key, options); });
    if (expansion.is_moderate()) continue;
    return absl::FailedPreconditionError(absl::StrCat(source == &a ? "A" : "B",
                                                      " is not compared: ", expansion.ToString(),
                                                      "; convert it first, if it is meant to be that large"));
  }
  return Diff(a, b, options).Run();
}

}  // namespace fsdp
