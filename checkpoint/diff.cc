// SPDX-License-Identifier: Apache-2.0
//
// Names come first, in one thread: each key of A is resolved in B with the aliases of both, B's remaining keys are
// resolved in A, and names that are then left on both sides are paired by a prefix, if they have one. Every pair of
// tensors is then cut into pieces at A's blocks, and the threads of a pool compare the pieces: each task reads its
// elements from both sides. Small pieces are joined up to kPieceBytes, because B's blocks have other boundaries and two
// neighbouring pieces each read a part of the same block. Memory is two pieces per thread, however large the
// checkpoints are.
#include "fsdp/checkpoint/diff.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/name_prefixes.h"
#include "fsdp/checkpoint/source/expansion.h"
#include "fsdp/checkpoint/source/safetensors_metadata.h"
#include "fsdp/checkpoint/text_difference.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

// A piece begins anywhere in a block of B, so that block is read for two pieces: larger pieces read fewer bytes twice.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

bool IsCompared(const StateKey& key, const DiffOptions& options) {
  return !options.model_only || key.section == Section::kModel;
}

// The contents of a source. Only our checkpoints store the metadata of safetensors as an extra text, so a comparison
// with ours adds it to the other side.
class Contents {
 public:
  Contents(const TensorSource& source, const TensorSource& other) : contents_(&source.contents()) {
    if (!other.traits().keeps_metadata) return;
    own_ = source.contents();
    KeepSafetensorsMetadata(source.metadata(), *own_);
    contents_ = &*own_;
  }
  Contents(const Contents&) = delete;
  Contents& operator=(const Contents&) = delete;

  const StateDict& operator*() const { return *contents_; }
  const StateDict* operator->() const { return contents_; }
  // The key of a tensor, by its entry.
  const StateKey& key(uint32_t entry) const { return contents_->entries()[entry].first; }
  bool is_tensor(size_t entry) const {
    return std::holds_alternative<ShardedTensor>(contents_->entries()[entry].second);
  }
  const ShardedTensor& tensor(uint32_t entry) const {
    return std::get<ShardedTensor>(contents_->entries()[entry].second);
  }

 private:
  std::optional<StateDict> own_;
  const StateDict* contents_;
};

// A tensor by its entries in A and in B: indices, because a checkpoint may have a million tensors.
struct Pair {
  uint32_t a = 0;
  uint32_t b = 0;
  bool is_renamed = false;  // of DiffReport::renamed
};

// Elements of tensor `tensor` of the batch.
struct Piece {
  size_t tensor = 0;
  Interval interval;
};

class Diff {
 public:
  Diff(const TensorSource& a, const TensorSource& b, const DiffOptions& options)
      : a_(a), b_(b), in_a_(a, b), in_b_(b, a), options_(options) {}

  absl::StatusOr<DiffReport> Run() {
    CompareNames();
    PairByPrefix();
    CompareAllTexts();
    CompareAliases();
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(options_.io_threads, "diff"));
    for (const Pair& pair : pairs_) bytes_total_ += BytesOf(pair);
    for (const Pair& pair : pairs_) {
      AddPieces(pair);
      if (std::max(pieces_.size(), batch_.size()) >= kBatch) FSDP_RETURN_IF_ERROR(CompareBatch(*pool));
    }
    FSDP_RETURN_IF_ERROR(CompareBatch(*pool));
    return std::move(report_);
  }

 private:
  void CompareNames() {
    pairs_.reserve(in_a_->entries().size());
    std::vector<bool> met(in_b_->entries().size());  // entries of B to which some key of A has resolved
    for (size_t a = 0; a < in_a_->entries().size(); ++a) {
      const auto& [key, value] = in_a_->entries()[a];
      if (!IsCompared(key, options_)) continue;
      // B may hold a tied weight under a name that only A knows to be its alias.
      const std::optional<size_t> b = in_b_->IndexOf(in_b_->Resolve(key, in_a_->aliases).value_or(key));
      if (!b) {
        report_.only_in_a.push_back(key.ToString());
        unpaired_a_.push_back(static_cast<uint32_t>(a));
        continue;
      }
      met[*b] = true;
      if (std::holds_alternative<ShardedTensor>(value)) {
        CompareTensor(a, *b);
      } else {
        texts_.push_back({static_cast<uint32_t>(a), static_cast<uint32_t>(*b)});
      }
    }
    for (size_t b = 0; b < in_b_->entries().size(); ++b) {
      const StateKey& key = in_b_->entries()[b].first;
      if (!IsCompared(key, options_) || met[b]) continue;
      // Only names that no key of A has resolved to are left here, so no pair is compared twice.
      const std::optional<size_t> a = in_a_->IndexOf(in_a_->Resolve(key).value_or(key));
      if (!a) {
        report_.only_in_b.push_back(key.ToString());
        unpaired_b_.push_back(static_cast<uint32_t>(b));
      } else if (std::holds_alternative<ShardedTensor>(in_a_->entries()[*a].second)) {
        CompareTensor(*a, b);  // A has it under another name
      }
    }
  }

  // The FQNs of the model's tensors among `unpaired`.
  static std::vector<std::string_view> ModelNames(const Contents& contents, const std::vector<uint32_t>& unpaired) {
    std::vector<std::string_view> names;
    for (const uint32_t entry : unpaired) {
      if (contents.key(entry).section == Section::kModel) names.push_back(contents.key(entry).fqn);
    }
    return names;
  }

  void PairByPrefix() {
    const std::optional<NamePrefixes> prefixes =
        FindPrefixes(ModelNames(in_a_, unpaired_a_), ModelNames(in_b_, unpaired_b_));
    if (!prefixes) return;
    report_.renamed.prefix_a = prefixes->a;
    report_.renamed.prefix_b = prefixes->b;
    for (const uint32_t a : unpaired_a_) {
      StateKey key = in_a_.key(a);
      if (key.section == Section::kExtra || key.fqn.compare(0, prefixes->a.size(), prefixes->a) != 0) continue;
      key.fqn = prefixes->b + key.fqn.substr(prefixes->a.size());
      const std::optional<size_t> b = in_b_->IndexOf(key);
      if (!b || !std::binary_search(unpaired_b_.begin(), unpaired_b_.end(), *b)) continue;
      if (in_a_.is_tensor(a) && in_b_.is_tensor(*b)) pairs_.push_back({a, static_cast<uint32_t>(*b), true});
    }
  }

  void CompareTensor(size_t a, size_t b) {
    if (!in_b_.is_tensor(b)) {
      const std::string name = Quote(in_a_->entries()[a].first.ToString());
      report_.structure.push_back(absl::StrCat(name, " is a tensor in A and a text in B"));
      return;
    }
    pairs_.push_back({static_cast<uint32_t>(a), static_cast<uint32_t>(b)});
  }

  // After PairByPrefix, since param_groups have the names of parameters.
  void CompareAllTexts() {
    const NamePrefixes prefixes = {report_.renamed.prefix_a, report_.renamed.prefix_b};
    for (const Pair& pair : texts_) CompareText(pair, prefixes);
  }

  void CompareText(const Pair& pair, const NamePrefixes& prefixes) {
    const auto& text = std::get<std::string>(in_a_->entries()[pair.a].second);
    const auto* other = std::get_if<std::string>(&in_b_->entries()[pair.b].second);
    const std::string name = Quote(in_a_.key(pair.a).ToString());
    const bool has_names = in_a_.key(pair.a).section == Section::kParamGroups && prefixes.a != prefixes.b;
    if (other == nullptr) {
      report_.structure.push_back(absl::StrCat(name, " is a text in A and a tensor in B"));
    } else if (const auto difference = CompareTexts(text, *other, has_names ? prefixes : NamePrefixes())) {
      report_.structure.push_back(absl::StrCat("text ", name, " ", *difference));
    } else if (*other != text && !has_names) {
      ++report_.respelled_texts;
    }
  }

  void CompareAliases() {
    // Other formats write tied weights once or twice and do not record which names are tied.
    if (!a_.is_ours() || !b_.is_ours()) return;
    const auto& in_a = in_a_->aliases;
    const auto& in_b = in_b_->aliases;
    const auto say = [&](const std::string& alias, const auto& here, const char* side, const auto& there) {
      const auto other = there.find(alias);
      if (other != there.end() && other->second == here.at(alias)) return;
      report_.structure.push_back(
          absl::StrCat(Quote(alias), " is an alias of ", Quote(here.at(alias)), " in ", side, " only"));
    };
    for (const auto& [alias, target] : in_a) say(alias, in_a, "A", in_b);
    for (const auto& [alias, target] : in_b) say(alias, in_b, "B", in_a);
  }

  bool HasValues(const Pair& pair) const { return in_a_.tensor(pair.a).shape == in_b_.tensor(pair.b).shape; }

  int64_t BytesOf(const Pair& pair) const {
    const ShardedTensor& a = in_a_.tensor(pair.a);
    return HasValues(pair) ? a.shape.numel() * (SizeOf(a.dtype) + SizeOf(in_b_.tensor(pair.b).dtype)) : 0;
  }

  // Adds a pair to the batch, and its pieces, cut at A's blocks, so that no block of A is read twice.
  void AddPieces(const Pair& pair) {
    const size_t tensor = batch_.size();
    batch_.push_back(pair);
    if (!HasValues(pair)) return;
    const ShardedTensor& a = in_a_.tensor(pair.a);
    const int64_t size = std::max(SizeOf(a.dtype), SizeOf(in_b_.tensor(pair.b).dtype));
    Interval gathered = {0, 0};
    for (const Interval& piece : a_.Pieces(in_a_.key(pair.a), {0, a.shape.numel()})) {
      if (!gathered.empty() && (piece.end - gathered.begin) * size > kPieceBytes) {
        pieces_.push_back({tensor, gathered});
        gathered = piece;
      }
      gathered = {gathered.empty() ? piece.begin : gathered.begin, piece.end};
    }
    if (!gathered.empty()) pieces_.push_back({tensor, gathered});
  }

  absl::Status CompareBatch(ThreadPool& pool) {
    // The sums are added in order at the end, so that floating-point results do not depend on timing.
    std::vector<ValueDifference> differences(pieces_.size());
    FSDP_RETURN_IF_ERROR(pool.ParallelFor(static_cast<int64_t>(pieces_.size()),
                                          [&](int64_t i) { return ComparePiece(pieces_[i], differences[i]); }));
    size_t piece = 0;
    for (size_t i = 0; i < batch_.size(); ++i) {
      const StateKey& key = in_a_.key(batch_[i].a);
      const ShardedTensor& a = in_a_.tensor(batch_[i].a);
      const ShardedTensor& b = in_b_.tensor(batch_[i].b);
      TensorDiff tensor = {key.ToString(), a.dtype, b.dtype, a.shape, b.shape, ValueDifference()};
      for (; piece < pieces_.size() && pieces_[piece].tensor == i; ++piece) tensor.values.Add(differences[piece]);
      const bool is_renamed = batch_[i].is_renamed;
      ++(is_renamed ? report_.renamed.compared : report_.compared);
      (is_renamed ? report_.renamed.total : report_.total).Add(tensor.values);
      const bool is_listed = options_.list_equal || !tensor.equal() || tensor.values.changed > 0;
      if (is_listed) (is_renamed ? report_.renamed.tensors : report_.tensors).push_back(std::move(tensor));
    }
    batch_.clear();
    pieces_.clear();
    return absl::OkStatus();
  }

  absl::Status ComparePiece(const Piece& piece, ValueDifference& difference) {
    const Pair& pair = batch_[piece.tensor];
    const DType dtype_a = in_a_.tensor(pair.a).dtype;
    const DType dtype_b = in_b_.tensor(pair.b).dtype;
    const int64_t numel = piece.interval.size();
    const int64_t bytes_a = numel * SizeOf(dtype_a);
    const int64_t bytes_b = numel * SizeOf(dtype_b);
    // new[] without (): the elements are not zeroed first, because Read fills all of them.
    const std::unique_ptr<std::byte[]> in_a(new std::byte[bytes_a]);
    const std::unique_ptr<std::byte[]> in_b(new std::byte[bytes_b]);
    FSDP_RETURN_IF_ERROR(a_.Read(in_a_.key(pair.a), piece.interval, in_a.get()));
    FSDP_RETURN_IF_ERROR(b_.Read(in_b_.key(pair.b), piece.interval, in_b.get()));
    FSDP_RETURN_IF_ERROR(CompareElements({dtype_a, in_a.get()}, {dtype_b, in_b.get()}, piece.interval.begin, numel,
                                         options_.tolerance, difference));
    // Also serializes the caller's progress function, which need not be thread-safe.
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_done_ += bytes_a + bytes_b;
    if (options_.progress) options_.progress(bytes_done_, bytes_total_);
    return absl::OkStatus();
  }

  // Pieces that are compared before their tensors are reported: enough for all threads, and few compared with a large
  // model.
  static constexpr size_t kBatch = 4096;

  const TensorSource& a_;
  const TensorSource& b_;
  const Contents in_a_;
  const Contents in_b_;
  const DiffOptions& options_;
  DiffReport report_;
  std::vector<uint32_t> unpaired_a_;  // entries of only_in_a, ascending
  std::vector<uint32_t> unpaired_b_;
  std::vector<Pair> texts_;  // entries, of which A's is a text
  std::vector<Pair> pairs_;
  std::vector<Pair> batch_;
  std::vector<Piece> pieces_;  // of the batch, in its order
  int64_t bytes_total_ = 0;

  std::mutex mutex_;
  int64_t bytes_done_ = 0;  // guarded by mutex_
};

bool HoldsModel(const TensorSource& source) {
  const auto& entries = source.contents().entries();
  return std::any_of(entries.begin(), entries.end(),
                     [](const StateDict::Entry& entry) { return entry.first.section == Section::kModel; });
}

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
  // Two empty sets would be equal.
  if (options.model_only && !HoldsModel(a) && !HoldsModel(b)) {
    return absl::InvalidArgumentError(
        "neither A nor B holds a model tensor, and DiffOptions::model_only ignores all others: compare them without "
        "it");
  }
  return Diff(a, b, options).Run();
}

}  // namespace fsdp
