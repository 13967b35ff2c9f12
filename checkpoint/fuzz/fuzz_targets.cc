// SPDX-License-Identifier: Apache-2.0
//
// Sanitizers test that readers do not crash. The checks here restate the guarantees of each header about a result
// (ranges inside their file, no overlap, sizes that match shapes), independently of the reader's code. So a reader that
// skips a check fails here even before a byte is read out of bounds.
//
// Random bytes seldom pass a digest, so inputs with a seal are also tried with a corrected seal; and a safetensors
// header is tried with the payload size that its last offset requires, since few headers would otherwise match their
// payload.
#include "fsdp/checkpoint/fuzz/fuzz_targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_source.h"
#include "fsdp/checkpoint/foreign/hdf5/confined_hdf5.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_listing.h"
#include "fsdp/checkpoint/foreign/npz/inflated_file.h"
#include "fsdp/checkpoint/foreign/npz/npz_source.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_header.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_shards.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/pickle/inert_globals.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_budget.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/foreign/zip/byte_file_testutil.h"
#include "fsdp/checkpoint/fuzz/reseal.h"
#include "fsdp/checkpoint/fuzz/scratch_directory.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/object/s3_reply.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

bool LiesInExtent(const StoredFile& file, const ByteRange& range) {
  for (const StoredExtent& extent : file.extents) {
    if (extent.range.offset <= range.offset && range.end() <= extent.range.end()) return true;
  }
  return false;
}

// The guarantees of a decoded manifest or record (manifest.h).
void CheckValues(const StoredValues& values) {
  for (const StoredFile& file : values.files) {
    Check(CheckFileName(file.name).ok(), "a file name leads elsewhere");
    int64_t end = 0;
    for (const StoredExtent& extent : file.extents) {
      Check(extent.range.offset >= end && extent.range.nbytes > 0, "extents overlap");
      Check(IsDigestBlock(extent.block_bytes), "a block that no buffer holds");
      Check(static_cast<int64_t>(extent.digests.size()) == extent.blocks(), "digests are missing");
      end = extent.range.end();
    }
    Check(end <= file.nbytes, "an extent reaches behind its file");
  }
  for (const StoredTensor& tensor : values.tensors) {
    for (const StoredInterval& part : tensor.intervals) {
      Check(part.file >= 0 && part.file < static_cast<int>(values.files.size()), "no such file");
      Check(Interval{0, tensor.shape.numel()}.Contains(part.interval), "an interval is no part of its tensor");
      if (part.interval.empty()) continue;
      const ByteRange range = {part.offset, part.interval.size() * SizeOf(tensor.dtype)};
      Check(LiesInExtent(values.files[part.file], range), "elements are not inside an extent");
    }
    // Holes are allowed in a decoded manifest; the call must only not crash.
    (void)CheckCovered(tensor);
  }
}

}  // namespace

bool FuzzManifest(std::string_view bytes) {
  (void)DecodeManifest(bytes);
  const absl::StatusOr<Manifest> manifest = DecodeManifest(Resealed(bytes));
  if (!manifest.ok()) return false;
  CheckValues(*manifest);
  // Everything that can be read can be written, and read again.
  const absl::StatusOr<Manifest> again = DecodeManifest(EncodeManifest(*manifest));
  Check(again.ok(), "what was read cannot be written and read again");
  return true;
}

bool FuzzRecord(std::string_view bytes) {
  (void)DecodeRecord(bytes);
  const absl::StatusOr<FileRecord> record = DecodeRecord(Resealed(bytes));
  if (record.ok()) CheckValues(*record);
  return record.ok();
}

bool FuzzSafetensorsHeader(std::string_view bytes) {
  // The payload size that makes offsets consistent: the end of the last entry.
  const size_t last = bytes.rfind("data_offsets");
  int64_t nbytes = 573;
  if (last != bytes.npos) {
    const size_t comma = bytes.find(',', last);
    const size_t close = bytes.find(']', last);
    if (comma < close && close != bytes.npos) {
      (void)absl::SimpleAtoi(std::string(bytes.substr(comma + 1, close - comma - 1)), &nbytes);
    }
  }
  bool is_read = false;
  // 573 is the payload of a file in the corpus, so that its header is accepted unchanged.
  for (const int64_t payload : {nbytes, int64_t{573}}) {
    const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(bytes, payload);
    if (!header.ok()) continue;
    int64_t end = 0;
    for (const SafetensorsEntry& entry : header->entries) {
      Check(entry.begin == end, "entries leave a gap");
      Check(entry.end - entry.begin == entry.shape.numel() * SizeOf(entry.dtype), "an entry has the wrong size");
      end = entry.end;
    }
    Check(end == payload, "entries do not cover the payload");
    is_read = true;
  }
  return is_read;
}

bool FuzzSafetensorsShards(std::string_view bytes) {
  const ScratchDirectory scratch;
  scratch.Write("parts/shard-00001-model-00001-of-00001.safetensors", bytes);
  const absl::StatusOr<std::unique_ptr<TensorSource>> source = OpenSafetensorsShards(scratch / "parts");
  if (!source.ok()) return false;
  bool is_read = true;
  for (const auto& [key, value] : (*source)->contents().entries()) {
    const auto& tensor = std::get<ShardedTensor>(value);
    const int64_t nbytes = tensor.shape.numel() * SizeOf(tensor.dtype);
    Check(nbytes >= 0 && nbytes <= static_cast<int64_t>(bytes.size()), "parts do not cover their tensor");
    std::vector<char> elements(nbytes);
    is_read = (*source)->Read(key, {0, tensor.shape.numel()}, elements.data()).ok() && is_read;
  }
  return is_read;
}

bool FuzzHuggingFaceIndex(std::string_view bytes) {
  const absl::StatusOr<HuggingFaceIndex> index = ParseHuggingFaceIndex(bytes);
  if (!index.ok()) return false;
  for (const auto& [name, file] : index->weight_map) {
    Check(file.find('/') == file.npos && file != "..", "a file name leads elsewhere");
  }
  return true;
}

// The file lives in memory; a confined child parses it, and may fail only with kDataLoss. An intact file of this size
// takes far less than one second of CPU, so a file that causes a loop is found.
bool FuzzHdf5File(std::string_view bytes) {
  const int file = memfd_create("fuzz", MFD_CLOEXEC);
  Check(file >= 0, "no file in memory");
  const absl::Cleanup close_file = [&] { close(file); };
  Check(pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "cannot write to memory");
  ConfinedHdf5Options options;
  options.cpu_seconds = 1;
  options.timeout = absl::Seconds(5);
  const auto listing = ListUntrustedHdf5(absl::StrCat("/proc/self/fd/", file), options);
  if (!listing.ok()) {
    Check(absl::IsDataLoss(listing.status()), "damage is not called so");
    return false;
  }
  Check(CheckHdf5Listing(listing->datasets, static_cast<int64_t>(bytes.size())).ok(), "a listing was not checked");
  return true;
}

bool FuzzHdf5Listing(std::string_view bytes) {
  const auto listing = DecodeHdf5Listing(bytes);
  if (!listing.ok()) return false;
  for (const Hdf5LeftOut& left_out : listing->left_out) (void)Describe(left_out);
  constexpr int64_t kFileBytes = 1 << 20;
  if (!CheckHdf5Listing(listing->datasets, kFileBytes).ok()) return false;
  for (const Hdf5Dataset& dataset : listing->datasets) {
    const bool is_placed = dataset.layout.empty() && dataset.nbytes > 0;
    Check(!is_placed || dataset.offset + dataset.nbytes <= kFileBytes, "a dataset reaches behind its file");
  }
  return true;
}

// Converts values to JSON and to a tree, the two ways in which a pickle is traversed. The bounds of views are
// recomputed only from the tensor.
bool FuzzPickle(std::string_view bytes) {
  const auto pickle = Pickle::Parse(bytes, TorchPickleOptions());
  if (!pickle.ok()) return false;
  PickleBudget budget(**pickle);
  (void)JsonOfPickle((*pickle)->root(), budget);
  const absl::StatusOr<TorchTree> plain = TreeOfPickle(**pickle);
  const absl::StatusOr<TorchTree> tree = ParseTorchTree(bytes);
  Check(tree.ok() || !plain.ok() || absl::IsDataLoss(tree.status()), "a tree needs the values of its tensors");
  if (!tree.ok()) return false;
  for (size_t i = 0; i < tree->tensors.size(); ++i) {
    const TorchTensor tensor = tree->tensors[i];
    int64_t last = tensor.offset;
    for (int d = 0; d < tensor.shape.rank(); ++d) last += (tensor.shape.dim(d) - 1) * tensor.strides[d];
    Check(tensor.shape.numel() == 0 || (last + 1) * SizeOf(tensor.dtype) <= tensor.storage.nbytes,
          "a tensor reaches beyond its storage");
  }
  return true;
}

// Without CRCs: a mutated archive would seldom have correct ones.
bool FuzzTorchArchive(std::string_view bytes) {
  const ByteFile file{std::string(bytes)};
  const absl::StatusOr<TorchArchive> archive =
      ReadTorchArchive({&file, 0, static_cast<int64_t>(bytes.size())}, {.verify = false});
  if (!archive.ok()) return false;
  for (uint32_t i = 0; i < archive->tree.tensors.storage_count(); ++i) {
    const StoragePlace place = archive->place(i);
    Check(place.offset >= 0 && place.nbytes >= 0 && place.offset + place.nbytes <= static_cast<int64_t>(bytes.size()),
          "a storage is outside of its file");
  }
  return true;
}

// A mutation may drop an array, and almost always breaks a CRC: then reading must fail quickly.
bool FuzzNpz(std::string_view bytes) {
  const auto source =
      OpenNpzFile(std::make_unique<ByteFile>(std::string(bytes)), {.verify = false, .skip_links = true});
  if (!source.ok()) return false;
  bool is_read = true;
  for (const auto& [key, value] : (*source)->contents().entries()) {
    const auto& tensor = std::get<ShardedTensor>(value);
    const int64_t nbytes = tensor.shape.numel() * SizeOf(tensor.dtype);
    Check(nbytes >= 0 && nbytes / kMaxDeflateRatio <= static_cast<int64_t>(bytes.size()),
          "an array is larger than it can be");
    std::vector<char> elements(std::min<int64_t>(nbytes, int64_t{1} << 16));
    const Interval first = {0, std::ssize(elements) / SizeOf(tensor.dtype)};
    is_read = (*source)->Read(key, first, elements.data()).ok() && is_read;
  }
  return is_read;
}

// The smallest blocks have 54 bytes for 256 elements, so that bounds every tensor by the file.
bool FuzzGguf(std::string_view bytes) {
  const auto source = OpenGgufFile(std::make_unique<ByteFile>(std::string(bytes)), {.skip_links = true});
  if (!source.ok()) return false;
  bool is_read = true;
  for (const auto& [key, value] : (*source)->contents().entries()) {
    const auto& tensor = std::get<ShardedTensor>(value);
    const int64_t numel = tensor.shape.numel();
    Check(numel >= 0 && numel / 5 <= static_cast<int64_t>(bytes.size()), "a tensor is larger than its file");
    std::vector<char> elements(numel * SizeOf(tensor.dtype));
    is_read = (*source)->Read(key, {0, numel}, elements.data()).ok() && is_read;
    // From the middle of a block.
    is_read = (*source)->Read(key, {numel / 3, numel}, elements.data()).ok() && is_read;
  }
  Check(is_read, "a tensor that was accepted cannot be read");
  return true;
}

// Chunks that do not overlap and have as many elements as their tensor cover it; the unit tests cover overlap.
bool FuzzDcpMetadata(std::string_view bytes) {
  const absl::StatusOr<DcpMetadata> metadata = ParseDcpMetadata(bytes);
  if (!metadata.ok()) return false;
  for (const DcpTensor& tensor : metadata->tensors) {
    int64_t covered = 0;
    for (uint32_t i = tensor.first_chunk; i < tensor.end_chunk; ++i) {
      int64_t volume = 1;
      for (const int64_t count : metadata->chunks.count(i)) volume *= count;
      covered += volume;
      Check(CheckFileName(metadata->chunks.slice(i).file).ok(), "a file name leads elsewhere");
    }
    Check(tensor.shape.numel() == 0 || covered == tensor.shape.numel(), "chunks do not cover their tensor");
  }
  return true;
}

bool FuzzS3Reply(std::string_view bytes) {
  constexpr char kPrefix[] = "run/";
  const absl::string_view xml(bytes.data(), bytes.size());
  const auto is_control = [](char c) { return absl::ascii_iscntrl(c); };
  const S3Error error = ParseError(xml);
  Check(std::none_of(error.code.begin(), error.code.end(), is_control), "an error's code has a control character");
  Check(std::none_of(error.message.begin(), error.message.end(), is_control), "an error's text has one");
  const absl::StatusOr<std::string> id = ParseUploadId(xml);
  Check(!id.ok() || !id->empty(), "an upload has no id");
  const absl::StatusOr<UploadsPage> uploads = ParseUploadsPage(xml, kPrefix);
  if (uploads.ok()) {
    for (const UploadsPage::Upload& upload : uploads->uploads) {
      Check(absl::StartsWith(upload.key, kPrefix) && !upload.id.empty(), "an upload is of another prefix");
    }
  }
  const absl::StatusOr<ListPage> page = ParseListPage(xml, kPrefix);
  if (!page.ok()) return false;
  for (const ObjectEntry& object : page->listing.objects) {
    Check(absl::StartsWith(object.key, kPrefix) && object.nbytes >= 0, "an object is of another prefix");
  }
  for (const std::string& folder : page->listing.folders) {
    Check(absl::StartsWith(folder, kPrefix), "a folder is of another prefix");
  }
  Check(std::none_of(page->next_token.begin(), page->next_token.end(), is_control), "a token has a control character");
  return true;
}

}  // namespace fsdp
