// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/onnx/onnx_source.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/onnx/onnx_model.h"
#include "fsdp/checkpoint/foreign/onnx/onnx_tensor.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/inside_directory.h"
#include "fsdp/checkpoint/storage/open_files.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

constexpr size_t kMostNamed = 20;  // of the tensors that are left out

class OnnxSource final : public TensorSource {
 public:
  // `given`: what was given to the reader; the file, or its directory.
  OnnxSource(std::string given, std::unique_ptr<File> file, const std::string& directory)
      : given_(std::move(given)), file_(std::move(file)), external_files_(directory) {}

  absl::Status ReadContents(const TensorSourceOptions& options) {
    absl::StatusOr<OnnxModel> model = ReadOnnxModel(*file_);
    if (!model.ok()) {
      FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(*file_));
      return Annotate(model.status(), file_->path());
    }
    contents_.Reserve(model->tensors.size());
    for (OnnxTensor& tensor : model->tensors) {
      const std::string name = tensor.name;
      const absl::Status status = Add(std::move(tensor));
      if (!status.ok()) return Annotate(status, absl::StrCat(file_->path(), ": tensor ", Quote(name)));
    }
    metadata_ = std::move(model->metadata);
    left_out_.insert(left_out_.end(), model->left_out.begin(), model->left_out.end());
    left_out_count_ += model->left_out_count;
    Describe(*model);
    return CheckLeftOut(options);
  }

  const FormatTraits& traits() const override { return OnnxTraits(); }
  const StateDict& contents() const override { return contents_; }
  const SourceLayout& layout() const override { return layout_; }
  int64_t step() const override { return -1; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths = {file_->path()};
    for (const std::string& location : locations_) paths.push_back(JoinPath(external_files_.directory(), location));
    return paths;
  }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> all = NamesLeftOut();
    for (std::string& beside : WeightsBesideGiven(given_, files())) all.push_back(std::move(beside));
    return all;
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const OnnxTensor* const tensor, Find(key));
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, tensor->read_shape().numel()));
    absl::Status status = ReadElements(*tensor, interval, static_cast<std::byte*>(out));
    if (status.ok() && tensor->type->dtype == DType::kBool) status = CheckBoolBytes(out, interval);
    return status.ok() ? status : Annotate(status, absl::StrCat(fsdp::Describe(key), " of ", file_->path()));
  }

  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const OnnxTensor* const tensor, Find(key));
    if (tensor->type->is_expanded()) {
      return absl::UnimplementedError(absl::StrCat("it is packed (", std::string(tensor->type->name), ")"));
    }
    if (tensor->ranges.size() != 1) return absl::UnimplementedError("its elements are not stored as their bytes");
    const Shape shape = tensor->read_shape();
    Box whole = {std::vector<int64_t>(shape.rank(), 0), {shape.dims().begin(), shape.dims().end()}};
    return std::vector<TensorPlace>{{PathOf(*tensor), tensor->ranges[0].offset, std::move(whole)}};
  }

 private:
  std::vector<std::string> NamesLeftOut() const {
    std::vector<std::string> named = left_out_;
    const int64_t more = left_out_count_ - std::ssize(left_out_);
    if (more > 0) named.push_back(absl::StrCat(more, " more"));
    return named;
  }

  absl::StatusOr<const OnnxTensor*> Find(const StateKey& key) const {
    const auto at = tensors_.find(key);
    if (at != tensors_.end()) return &at->second;
    return absl::NotFoundError(absl::StrCat(file_->path(), " holds no ", fsdp::Describe(key)));
  }

  std::string PathOf(const OnnxTensor& tensor) const {
    return tensor.external ? JoinPath(external_files_.directory(), tensor.external->location) : file_->path();
  }

  absl::Status Add(OnnxTensor tensor) {
    if (!tensor.why_not.empty()) {
      ++left_out_count_;
      if (left_out_.size() < kMostNamed)
        left_out_.push_back(absl::StrCat(Quote(tensor.name), " (", tensor.why_not, ")"));
      return absl::OkStatus();
    }
    if (tensor.external) FSDP_RETURN_IF_ERROR(PlaceExternal(tensor));
    if (tensor.type->is_expanded()) ++expanded_[tensor.type->name];
    StateKey key = StateKey::Model(tensor.name);
    FSDP_RETURN_IF_ERROR(CheckStateKey(key));
    ShardedTensor described;
    described.dtype = *tensor.type->dtype;
    described.shape = tensor.read_shape();
    contents_.Set(key, std::move(described));
    tensors_.emplace(std::move(key), std::move(tensor));
    return absl::OkStatus();
  }

  // Finds the range of the external file, which must be in the directory and have it.
  absl::Status PlaceExternal(OnnxTensor& tensor) {
    const OnnxExternalData& data = *tensor.external;
    if (locations_.count(data.location) == 0) {
      FSDP_RETURN_IF_ERROR(CheckStaysInside(external_files_.directory(), data.location, file_->path()));
    }
    absl::StatusOr<OpenFiles::Opened> opened = external_files_.Open(data.location);
    if (absl::IsNotFound(opened.status())) {
      return absl::NotFoundError(absl::StrCat("its elements are in ", PathOf(tensor),
                                              ", which does not exist: get it too, and keep its name"));
    }
    if (!opened.ok()) return opened.status();
    if (locations_.insert(data.location).second) FSDP_RETURN_IF_ERROR(CheckIsDownloaded(*opened->file));
    checksums_ += data.has_checksum ? 1 : 0;
    const int64_t left = std::max<int64_t>(opened->nbytes - data.offset, 0);
    // The division first: for a hostile shape the product could overflow.
    const bool is_small = tensor.shape.numel() / 8 <= opened->nbytes;
    const int64_t nbytes = is_small ? tensor.nbytes() : -1;
    if (is_small && nbytes == data.length.value_or(left) && nbytes <= left) {
      tensor.ranges = {{data.offset, nbytes}};
      return absl::OkStatus();
    }
    const std::string stated = data.length ? absl::StrCat(*data.length, " bytes") : "all bytes";
    return absl::DataLossError(
        absl::StrCat("its elements are ", stated, " from byte ", data.offset, " of ", PathOf(tensor), ", which has ",
                     opened->nbytes, ", but ", tensor.shape.ToString(), " ", std::string(tensor.type->name), " takes ",
                     is_small ? absl::StrCat(nbytes) : "more", ": the file is truncated, or of another model"));
  }

  absl::Status ReadElements(const OnnxTensor& tensor, const Interval& interval, std::byte* out) const {
    const OnnxType& type = *tensor.type;
    if (interval.empty()) return absl::OkStatus();
    if (!type.is_expanded()) {
      const int64_t size = SizeOf(*type.dtype);
      return ReadStored(tensor, {interval.begin * size, interval.end * size}, out);
    }
    constexpr int64_t kScratchBytes = int64_t{64} << 10;
    const int per_byte = 8 / type.bits;
    std::vector<std::byte> scratch;
    for (int64_t begin = interval.begin; begin < interval.end;) {
      const int64_t first = begin / per_byte;  // byte
      const int64_t end = std::min(interval.end, (first + kScratchBytes) * per_byte);
      scratch.resize((end + per_byte - 1) / per_byte - first);
      FSDP_RETURN_IF_ERROR(ReadStored(tensor, {first, first + std::ssize(scratch)}, scratch.data()));
      ExpandOnnxElements(type, scratch.data(), begin - first * per_byte, end - begin, out + (begin - interval.begin));
      begin = end;
    }
    return absl::OkStatus();
  }

  // Bytes of the elements as they are stored.
  absl::Status ReadStored(const OnnxTensor& tensor, const Interval& bytes, std::byte* out) const {
    if (tensor.has_varints()) {
      const int unit = tensor.type->unit_bytes;
      return tensor.varints.Read(*file_, {bytes.begin / unit, bytes.end / unit}, unit, out);
    }
    if (tensor.external) {
      FSDP_ASSIGN_OR_RETURN(const OpenFiles::Opened opened, external_files_.Open(tensor.external->location));
      return ReadRanges(*opened.file, tensor.ranges, bytes, out);
    }
    return ReadRanges(*file_, tensor.ranges, bytes, out);
  }

  static absl::Status ReadRanges(const File& file, const std::vector<ByteRange>& ranges, const Interval& bytes,
                                 std::byte* out) {
    int64_t begin = 0;  // of a range, in the bytes of the tensor
    for (const ByteRange& range : ranges) {
      const int64_t from = std::max(bytes.begin, begin);
      const int64_t to = std::min(bytes.end, begin + range.nbytes);
      if (from < to) {
        FSDP_RETURN_IF_ERROR(
            file.Read(range.offset + (from - begin), absl::MakeSpan(out + (from - bytes.begin), to - from)));
      }
      begin += range.nbytes;
    }
    return absl::OkStatus();
  }

  void Describe(const OnnxModel& model) {
    layout_.text = absl::StrCat("model from the initializers of graph ", Quote(model.graph_name));
    if (!model.producer.empty()) absl::StrAppend(&layout_.text, ", by ", Printable(model.producer));
    if (model.nodes > 0) {
      layout_.notes.push_back(absl::StrCat("the graph is left out: ", model.nodes,
                                           model.nodes == 1 ? " node" : " nodes", ", ", model.node_tensors,
                                           model.node_tensors == 1 ? " constant" : " constants"));
    }
    for (const auto& [name, count] : expanded_) {
      layout_.notes.push_back(absl::StrCat(count, count == 1 ? " tensor is " : " tensors are ", std::string(name),
                                           " and read as ", name[0] == 'U' ? "uint8" : "int8"));
    }
    if (checksums_ > 0) layout_.notes.emplace_back("the SHA-1 of external files is not compared");
  }

  absl::Status CheckLeftOut(const TensorSourceOptions& options) const {
    if (tensors_.empty() && left_out_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(file_->path(), " has no initializers"));
    }
    if (left_out_.empty() || (options.skip_links && !tensors_.empty())) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(file_->path(), ": these would be left out: ", absl::StrJoin(NamesLeftOut(), ", "),
                     tensors_.empty() ? "; there is nothing else in it"
                                      : "; set TensorSourceOptions::skip_links to go without them"));
  }

  const std::string given_;
  const std::unique_ptr<File> file_;
  mutable OpenFiles external_files_;
  std::set<std::string> locations_;  // of external files
  std::map<StateKey, OnnxTensor> tensors_;
  StateDict contents_;
  SourceLayout layout_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> left_out_;
  int64_t left_out_count_ = 0;
  std::map<std::string_view, int64_t> expanded_;  // tensors by type
  int64_t checksums_ = 0;
};

absl::StatusOr<std::unique_ptr<TensorSource>> SourceOf(const std::string& given, std::unique_ptr<File> file,
                                                       const std::string& directory,
                                                       const TensorSourceOptions& options) {
  auto source = std::make_unique<OnnxSource>(given, std::move(file), directory);
  FSDP_RETURN_IF_ERROR(source->ReadContents(options));
  return source;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenOnnxSource(const std::string& path,
                                                             const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::filesystem::file_type type, TypeOfTarget(path));
  const bool is_directory = type == std::filesystem::file_type::directory;
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                        PosixFileSystem().Open(is_directory ? JoinPath(path, kOnnxModelName) : path));
  return SourceOf(path, std::move(file), is_directory ? path : SplitPath(path).directory, options);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenOnnxFile(std::unique_ptr<File> file, const std::string& directory,
                                                           const TensorSourceOptions& options) {
  const std::string path = file->path();
  return SourceOf(path, std::move(file), directory, options);
}

const FormatTraits& OnnxTraits() {
  static const auto* traits = new FormatTraits{
      .name = "onnx", .headline = "a model in ONNX", .in_directory = {}, .file = "an ONNX file", .suffixes = {".onnx"}};
  return *traits;
}

}  // namespace fsdp
