// SPDX-License-Identifier: Apache-2.0
//
// TensorSource: a checkpoint open for reading, whatever its format: names, dtypes, shapes, and the bytes of any
// interval of any tensor. The reading half of load, verify, convert and inspect; one implementation per format. Opening
// it reads metadata only and believes none of it unchecked. Reads are thread-safe and verify digests where the format
// has them.
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
#include "fsdp/tensor/box.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct TensorSourceOptions {
  bool verify = true;  // compare digests, and the checksums of the format, while reading

  // The parameters in FSDP1's flat parameters, for torch files and DCP directories with flat parameters, whose layout
  // the files do not record.
  std::optional<FlatLayout> flat_layout = {};

  // Leave out the optimizer's state of torch files and DCP directories; then it is no error if it cannot be read.
  bool model_only = false;

  // Open an HDF5 file although links of it are not followed; TensorSource::left_out() names them. Otherwise such a file
  // is refused, and the error names them.
  bool skip_links = false;
};

// An error of opening a source calls an option by its name here, "TensorSourceOptions::skip_links". Returns `status`
// with
// "`options`::skip_links" instead, for functions whose callers set the options of that name. An OK status stays OK.
absl::Status NameOptions(const absl::Status& status, std::string_view options);

// Elements of one tensor of a source, to be written to `out` as `dtype`, which may differ from the stored one.
struct TensorRead {
  StateKey key;
  Interval interval;
  DType dtype = DType::kFloat32;
  std::byte* out = nullptr;
};

// Where elements `box` of a tensor lie: row-major, little-endian, from byte `offset` of `file`.
struct TensorPlace {
  std::string file;
  int64_t offset = 0;
  Box box;
};

// The bytes that a tensor of a format with views is a view of.
struct TensorStorage {
  int64_t id = 0;             // equal for views of one storage
  int64_t nbytes = 0;         // of the whole storage
  int64_t view = 0;           // equal for equal views of one storage: the same elements in the same order
  int64_t touched_bytes = 0;  // from the first element to the last, in the storage

  // How many elements TensorSource::ReadDistinct has of the tensor: each of the storage that the tensor shows, once. 0:
  // ReadDistinct cannot read it. Less than the tensor's own number where it is expanded or its windows overlap.
  int64_t distinct_numel = 0;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // The format's name in reports: "hdf5", "safetensors", ...
  virtual std::string_view format() const = 0;

  // True for checkpoints that this project wrote: kind, units, aliases and world size are as they were saved, and every
  // byte has a digest.
  virtual bool is_ours() const { return false; }

  // True when HDF5 programs open the files of the checkpoint as they are.
  virtual bool is_hdf5() const { return false; }

  // True when the format has a place for metadata(), or for a text that stands for them.
  virtual bool keeps_metadata() const { return false; }

  // Keys, dtypes and whole shapes, with no shards; texts; aliases; unit layouts; kind; attributes, which only our own
  // format has.
  virtual const StateDict& contents() const = 0;

  // step: -1 when the checkpoint records none. world_size: 1 when it records none.
  virtual int64_t step() const = 0;
  virtual int world_size() const = 0;

  // String metadata of the format (safetensors' __metadata__); empty where there is none.
  virtual const std::map<std::string, std::string>& metadata() const = 0;

  // What the files have and contents() lacks, one link or object each, fit for messages: `"/model/b" (soft link to
  // "/model/a")`. Of very many the first ones, and then the number of the others.
  virtual std::vector<std::string> left_out() const { return {}; }

  // Elements `interval` of a tensor of contents(), in its stored dtype, to `out` (interval.size() * SizeOf(dtype)
  // bytes). kDataLoss names tensor, file and byte range.
  virtual absl::Status Read(const StateKey& key, const Interval& interval, void* out) const = 0;

  // All of `reads`, on the threads of `pool`; blocks until all are done. A source with digests reads each block once,
  // however many reads want a part of it.
  virtual absl::Status ReadAll(const std::vector<TensorRead>& reads, ThreadPool& pool) const;

  // `interval` in pieces of a few MiB, cut at the blocks of the format, so that piecewise reading reads no block twice;
  // for callers that read in parallel or in bounded memory.
  virtual std::vector<Interval> Pieces(const StateKey& key, const Interval& interval) const;

  // True when the format has checksums of its own that reading compares: our digests, the CRCs of a torch archive.
  // Known once everything has been read.
  virtual bool has_checksums() const { return false; }

  // Compares the checksums that the reads so far could not compare, since they read only a part of the bytes that a
  // checksum covers: reads the other parts. Call it after the last read. kDataLoss as that of Read.
  virtual absl::Status VerifyRest() const { return absl::OkStatus(); }

  // The storage of a tensor, in a format whose tensors are views; nullopt: the file has each element of it once. What
  // it means for a checkpoint: expansion.h. May read metadata.
  virtual std::optional<TensorStorage> Storage(const StateKey&) const { return std::nullopt; }

  // Elements `interval` of the TensorStorage::distinct_numel of a tensor, in the order of the file and the stored
  // dtype. Errors as those of Read; kUnimplemented where distinct_numel is 0.
  virtual absl::Status ReadDistinct(const StateKey& key, const Interval& interval, void* out) const;

  // Where the bytes of a tensor lie, as boxes that cover it once, for views that do not copy. kUnimplemented says why
  // there is no such place: the elements do not lie together, or the format does not reveal it.
  virtual absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_TENSOR_SOURCE_H_
