// SPDX-License-Identifier: Apache-2.0
//
// TensorSource: a checkpoint of any format, open for reading: names, dtypes, shapes, and the bytes of any interval of
// any tensor. Used by load, verify, convert and inspect; one implementation per format. Opening reads only metadata and
// checks all of it. Reads are thread-safe and verify the digests of formats that have them.
#ifndef FSDP_CHECKPOINT_SOURCE_TENSOR_SOURCE_H_
#define FSDP_CHECKPOINT_SOURCE_TENSOR_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/tensor/box.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct TensorSourceOptions {
  bool verify = true;  // compare digests, and the checksums of the format, while reading

  // The parameters in FSDP1's flat parameters, for torch files and DCP directories with flat parameters, whose layout
  // the files do not record.
  std::optional<FlatLayout> flat_layout = {};

  // Leave out the optimizer's state of torch files and DCP directories; then it is not an error if it cannot be read.
  // Objects of Python classes in such files are then left out as with skip_links.
  bool model_only = false;

  // Open an HDF5 file even if some of its links are not followed, an .npz file even if some of its arrays are not
  // tensors, and a torch file or DCP directory even if some of its values are objects of Python classes;
  // TensorSource::left_out() names them. Otherwise such a file is refused, and the error names them.
  bool skip_links = false;

  // Carry tensors of a quantized type in GGUF as their blocks, uint8 with as many bytes in a row, in place of
  // converting them to float32; metadata() has their types (block_types.h).
  bool keep_quantized = false;

  // What branches of the dict in a torch file or DCP directory are, if their structure does not tell. One that names a
  // model, or an optimizer, takes the place of those that would be found.
  std::vector<TensorRole> map = {};
};

// An error of opening a source names options as "TensorSourceOptions::skip_links". Returns `status` with
// "`options`::skip_links" instead, for functions whose callers set options of another struct. An OK status stays OK.
absl::Status NameOptions(const absl::Status& status, std::string_view options);

// OK when `interval` is inside the `numel` elements of a tensor; otherwise the kInvalidArgument of TensorSource::Read.
absl::Status CheckElements(const StateKey& key, const Interval& interval, int64_t numel);

// Elements of one tensor of a source, to be written to `out` as `dtype`, which may differ from the stored one.
struct TensorRead {
  StateKey key;
  Interval interval;
  DType dtype = DType::kFloat32;
  std::byte* out = nullptr;
};

// The place of elements `box` of a tensor: row-major, little-endian, from byte `offset` of `file`.
struct TensorPlace {
  std::string file;
  int64_t offset = 0;
  Box box;
};

class CoveringChecksums;
class TensorViews;

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // The constants of its format: FormatDriver::traits() of the driver that opened it.
  virtual const FormatTraits& traits() const = 0;

  // The format's name in reports: "hdf5", "safetensors", ...
  std::string_view format() const { return traits().name; }

  // True for checkpoints that this project wrote: kind, units, aliases and world size are as saved, and every byte has
  // a digest.
  bool is_ours() const { return traits().is_ours; }

  // Keys, dtypes and whole shapes, with no shards; texts; aliases; unit layouts; kind; attributes, which only our own
  // format has.
  virtual const StateDict& contents() const = 0;

  // step: -1 if the checkpoint does not record it. world_size: 1 if it is not recorded.
  virtual int64_t step() const = 0;
  virtual int world_size() const = 0;

  // String metadata of the format (safetensors' __metadata__); may be empty.
  virtual const std::map<std::string, std::string>& metadata() const = 0;

  // The files that its values are read from, in an order that follows from their contents.
  virtual std::vector<std::string> files() const = 0;

  // What it holds, as a text for messages: equal for copies in other places, and different, except by a chance of about
  // 2^-128, for others. Ours: save id and digest of the manifest, which has the digests of all bytes. Other formats:
  // DescribeContents of files(), which reads at most 64 MiB and the ends of each file. Errors of reading.
  virtual absl::StatusOr<std::string> Identity() const;

  // Links and objects in the files that contents() does not have, for messages: `"/model/b" (soft link to "/model/a")`.
  // If there are very many, only the first, and then the number of the others.
  virtual std::vector<std::string> left_out() const { return {}; }

  // Which of the file's values became contents()'s model, optimizer and extra values, for messages.
  virtual const SourceLayout& layout() const;

  // Elements `interval` of a tensor of contents(), in its stored dtype, to `out` (interval.size() * SizeOf(dtype)
  // bytes). kDataLoss names tensor, file and byte range; kNotFound names a missing tensor; kInvalidArgument an interval
  // outside of it (CheckElements).
  virtual absl::Status Read(const StateKey& key, const Interval& interval, void* out) const = 0;

  // Performs all `reads` on the threads of `pool`; blocks until all are done. A source with digests reads each block
  // once, for any number of reads that overlap it.
  virtual absl::Status ReadAll(const std::vector<TensorRead>& reads, ThreadPool& pool) const;

  // `interval` in pieces of a few MiB, cut at the blocks of the format, so that piecewise reading reads no block twice;
  // for callers that read in parallel or in bounded memory.
  virtual std::vector<Interval> Pieces(const StateKey& key, const Interval& interval) const;

  // True when the format has its own checksums that reading compares: our digests, the CRCs of a torch archive. Known
  // once everything has been read.
  virtual bool has_checksums() const { return false; }

  // Interfaces that only some formats have; null for the others. They live as long as the source.
  virtual const TensorViews* views() const { return nullptr; }
  virtual const CoveringChecksums* covering_checksums() const { return nullptr; }

  // The places of a tensor's bytes, as boxes that cover it once, for views that do not copy. kUnimplemented, with the
  // reason, if there is no such place: the elements are not contiguous, or the format does not reveal it.
  virtual absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_TENSOR_SOURCE_H_
