// SPDX-License-Identifier: Apache-2.0
//
// An entry is a File, whether it is stored (a slice of the archive) or compressed (inflated_file.h), and an array is a
// strided view of it, in C order or Fortran order, so one function reads every array. Sizes are stated three times: by
// the directory, by the shape and dtype of the header, and by the bytes that are present. An array is accepted only if
// all three are equal.
#include "fsdp/checkpoint/foreign/npz/npz_source.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/npz/inflated_file.h"
#include "fsdp/checkpoint/foreign/npz/npy_header.h"
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"
#include "fsdp/checkpoint/foreign/zip/file_slice.h"
#include "fsdp/checkpoint/foreign/zip/zip_directory.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/strided_read.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/nearby_reads.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr absl::string_view kSuffix = ".npy";
constexpr size_t kMostNamed = 20;  // of the arrays that are left out

// One array of the archive.
struct NpzArray {
  NpyHeader header;
  int64_t offset = 0;                      // of the elements: in the archive if it is stored, else in the entry
  std::unique_ptr<InflatedFile> inflated;  // null: it is stored
  bool is_row_major = true;                // true for Fortran order, too, if at most one dimension is longer than 1
};

// The strides of Fortran order, in elements.
std::vector<int64_t> ColumnMajorStrides(const Shape& shape) {
  std::vector<int64_t> strides(shape.rank(), 1);
  for (int d = 1; d < shape.rank(); ++d) strides[d] = strides[d - 1] * std::max<int64_t>(shape.dim(d - 1), 1);
  return strides;
}

// Swaps the two numbers of a complex element separately.
void SwapBytes(DType dtype, absl::Span<std::byte> bytes) {
  const bool is_complex = dtype == DType::kComplex64 || dtype == DType::kComplex128;
  const int64_t size = SizeOf(dtype) / (is_complex ? 2 : 1);
  for (auto at = bytes.begin(); at != bytes.end(); at += size) std::reverse(at, at + size);
}

class NpzSource final : public TensorSource, public CoveringChecksums {
 public:
  NpzSource(std::unique_ptr<File> file, const TensorSourceOptions& options)
      : checksums_(std::make_shared<EntryChecksums>()),
        verifies_(options.verify),
        file_(std::make_unique<ChecksummedFile>(std::move(file), checksums_)) {}

  absl::Status ReadContents() {
    FSDP_ASSIGN_OR_RETURN(const FileSlice file, FileSlice::Whole(*file_));
    const absl::StatusOr<std::string> magic = file.ReadText(0, kNpyMagic.size());
    is_archive_ = !magic.ok() || *magic != kNpyMagic;
    if (!is_archive_) return AddArray(NameOfArray(file_->path()), {}, 0, file.nbytes);
    FSDP_ASSIGN_OR_RETURN(const ZipDirectory directory, ZipDirectory::Read(file));
    for (size_t i = 0; i < directory.size(); ++i) {
      const ZipEntry entry = directory[i];
      const absl::Status status = Add(entry);
      if (!status.ok()) return Annotate(status, absl::StrCat("entry ", Quote(entry.name)));
    }
    return absl::OkStatus();
  }

  const FormatTraits& traits() const override { return NpzTraits(); }
  const StateDict& contents() const override { return contents_; }
  int64_t step() const override { return -1; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::vector<std::string> files() const override { return {file_->path()}; }
  std::vector<std::string> left_out() const override { return left_out_; }
  bool has_checksums() const override { return verifies_ && is_archive_; }
  const CoveringChecksums* covering_checksums() const override { return this; }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const NpzArray* const array, Find(key));
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, array->header.shape.numel()));
    const absl::Status status = ReadArray(*array, interval, static_cast<std::byte*>(out));
    return status.ok() ? status : Annotate(status, absl::StrCat(Describe(key), " of ", file_->path()));
  }

  // Only an array whose bytes equal the tensor's has a place.
  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const NpzArray* const array, Find(key));
    if (array->inflated != nullptr) return absl::UnimplementedError("it is compressed");
    if (array->header.is_swapped) return absl::UnimplementedError("its elements are big-endian");
    if (!array->is_row_major) return absl::UnimplementedError("it is in Fortran order");
    const Shape& shape = array->header.shape;
    Box whole = {std::vector<int64_t>(shape.rank(), 0), {shape.dims().begin(), shape.dims().end()}};
    return std::vector<TensorPlace>{{file_->path(), array->offset, std::move(whole)}};
  }

  // Compressed entries first: each stream knows its own CRC. Stored entries are read again only if a part is
  // missing.
  absl::Status VerifyRest() const override {
    if (!verifies_) return absl::OkStatus();
    for (const auto& [key, array] : arrays_) {
      // Streams check their own CRC at the end; stored entries are covered by checksums_ below.
      if (array.inflated == nullptr) continue;
      const absl::Status status = array.inflated->VerifyAll();
      if (!status.ok()) return Annotate(status, file_->path());
    }
    const absl::Status status = ReadForChecksums(*file_, checksums_->Missing());
    return status.ok() ? status : Annotate(status, file_->path());
  }

 private:
  absl::StatusOr<const NpzArray*> Find(const StateKey& key) const {
    const auto at = arrays_.find(key);
    if (at != arrays_.end()) return &at->second;
    return absl::NotFoundError(absl::StrCat(file_->path(), " holds no ", Describe(key)));
  }

  void LeaveOut(const std::string& what) {
    // Bounded, because the list becomes a message, and an archive may have any number of such entries.
    if (left_out_.size() < kMostNamed) left_out_.push_back(what);
  }

  absl::Status Add(const ZipEntry& entry) {
    absl::string_view name = entry.name;
    if (!absl::ConsumeSuffix(&name, kSuffix)) {
      LeaveOut(absl::StrCat(Quote(entry.name), " (no .npy file)"));
      return absl::OkStatus();
    }
    NpzArray array;
    if (!entry.is_stored()) {
      ZipEntry compared = entry;
      // 0 means "no CRC" to InflatedFile.
      if (!verifies_) compared.crc = 0;
      FSDP_ASSIGN_OR_RETURN(array.inflated, InflatedFile::Open(*file_, std::move(compared), inflaters_));
    } else if (verifies_ && entry.crc != 0) {
      checksums_->Expect(entry.name, {entry.payload_offset, entry.payload_offset + entry.nbytes}, entry.crc);
    }
    // Offsets of a stored array count in the archive, of a compressed one in the inflated entry (FileOf).
    const int64_t begin = entry.is_stored() ? entry.payload_offset : 0;
    return AddArray(std::string(name), std::move(array), begin, entry.nbytes);
  }

  // A .npy file by itself does not name its array.
  static std::string NameOfArray(const std::string& path) {
    const std::string file = SplitPath(path).name;
    return std::string(absl::StripSuffix(file, kSuffix));
  }

  // The array in the `nbytes` bytes from byte `begin` of its file.
  absl::Status AddArray(std::string name, NpzArray array, int64_t begin, int64_t nbytes) {
    FSDP_ASSIGN_OR_RETURN(array.header, ReadHeader(FileOf(array), begin, nbytes));
    if (!array.header.dtype) {
      LeaveOut(absl::StrCat(Quote(name), " (", array.header.why, ")"));
      return absl::OkStatus();
    }
    const Shape& shape = array.header.shape;
    const int64_t payload = nbytes - array.header.nbytes;
    // The division first: for a hostile shape the product could overflow.
    if (shape.numel() > payload / SizeOf(*array.header.dtype) ||
        shape.numel() * SizeOf(*array.header.dtype) != payload) {
      return absl::DataLossError(absl::StrCat("it has ", payload, " bytes of elements, which is not the size of ",
                                              shape.ToString(), " ", std::string(DTypeName(*array.header.dtype))));
    }
    array.offset = begin + array.header.nbytes;
    const auto long_dims = std::count_if(shape.dims().begin(), shape.dims().end(), [](int64_t n) { return n > 1; });
    // With one long dimension both orders are equal, and reading without strides is faster.
    array.is_row_major = !array.header.fortran_order || long_dims < 2;
    return AddTensor(std::move(name), std::move(array));
  }

  absl::Status AddTensor(std::string name, NpzArray array) {
    StateKey key = StateKey::Model(std::move(name));
    FSDP_RETURN_IF_ERROR(CheckStateKey(key));
    ShardedTensor described;
    described.dtype = *array.header.dtype;
    described.shape = array.header.shape;
    contents_.Set(key, std::move(described));
    arrays_.emplace(std::move(key), std::move(array));
    return absl::OkStatus();
  }

  // Reads the header of the array in the `nbytes` bytes from byte `begin` of `file`.
  static absl::StatusOr<NpyHeader> ReadHeader(const File& file, int64_t begin, int64_t nbytes) {
    const FileSlice entry = {&file, begin, nbytes};
    FSDP_ASSIGN_OR_RETURN(const std::string prelude, entry.ReadText(0, kNpyPreludeBytes));
    FSDP_ASSIGN_OR_RETURN(const int64_t header_bytes, NpyHeaderBytes(prelude));
    // No byte is read twice: a CRC is combined from reads that do not overlap.
    FSDP_ASSIGN_OR_RETURN(const std::string rest, entry.ReadText(prelude.size(), header_bytes - kNpyPreludeBytes));
    return ParseNpyHeader(prelude + rest);
  }

  const File& FileOf(const NpzArray& array) const {
    return array.inflated != nullptr ? static_cast<const File&>(*array.inflated) : *file_;
  }

  absl::Status ReadArray(const NpzArray& array, const Interval& interval, std::byte* out) const {
    const DType dtype = *array.header.dtype;
    const int64_t size = SizeOf(dtype);
    const absl::Span<std::byte> bytes(out, interval.size() * size);
    if (array.is_row_major) {
      FSDP_RETURN_IF_ERROR(FileOf(array).Read(array.offset + interval.begin * size, bytes));
    } else {
      const std::vector<int64_t> strides = ColumnMajorStrides(array.header.shape);
      const StridedView view = {array.offset, size, array.header.shape, strides};
      FSDP_RETURN_IF_ERROR(ReadStridedInterval(FileOf(array), view, interval, out));
    }
    if (array.header.is_swapped) SwapBytes(dtype, bytes);
    return dtype == DType::kBool ? CheckBoolBytes(out, interval) : absl::OkStatus();
  }

  const std::shared_ptr<EntryChecksums> checksums_;
  const bool verifies_;
  bool is_archive_ = true;  // false: the file is one array, without a CRC
  const std::unique_ptr<ChecksummedFile> file_;
  // Shared by all entries, so that the number of streams does not grow with the arrays.
  mutable InflaterPool inflaters_;
  std::map<StateKey, NpzArray> arrays_;
  StateDict contents_;
  std::vector<std::string> left_out_;
  const std::map<std::string, std::string> metadata_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenNpzSource(const std::string& path,
                                                            const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, PosixFileSystem().Open(path));
  return OpenNpzFile(std::make_unique<NearbyReads>(std::move(file)), options);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenNpzFile(std::unique_ptr<File> file,
                                                          const TensorSourceOptions& options) {
  const std::string path = file->path();
  auto source = std::make_unique<NpzSource>(std::move(file), options);
  const absl::Status status = source->ReadContents();
  if (!status.ok()) return Annotate(status, path);
  const std::vector<std::string> left_out = source->left_out();
  if (left_out.empty() || (options.skip_links && !source->contents().empty())) return source;
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": only arrays of numbers are tensors, so these would be left out: ", absl::StrJoin(left_out, ", "),
      source->contents().empty() ? "; there is nothing else in it"
                                 : "; set TensorSourceOptions::skip_links to go without them"));
}

const FormatTraits& NpzTraits() {
  static const auto* traits = new FormatTraits{.name = "npz",
                                               .headline = "arrays of NumPy",
                                               .file = "an .npz or .npy file",
                                               .suffixes = {".npz"},
                                               .model_only = true,
                                               .is_plain = true};
  return *traits;
}

}  // namespace fsdp
