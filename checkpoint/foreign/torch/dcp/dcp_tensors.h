// SPDX-License-Identifier: Apache-2.0
//
// DcpTensors: the tensors of a DCP directory by number, and reading their elements from the chunks: what every source
// of such a directory has in common, whatever its names mean. A chunk's archive is parsed when a read first needs it,
// and its position is kept. Reads are thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_TENSORS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/foreign/torch/dcp/chunk_places.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_value.h"
#include "fsdp/checkpoint/foreign/torch/pt/file_pool.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/foreign/torch/state/distinct_elements.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// Reads the .metadata of the directory `path`. Errors name the file.
absl::StatusOr<DcpMetadata> ReadDcpMetadata(const std::string& path);

class DcpTensors {
 public:
  DcpTensors(std::string path, DcpMetadata metadata, const TensorSourceOptions& options)
      : path_(std::move(path)),
        metadata_(std::move(metadata)),
        options_(options),
        files_(path_, options),
        places_(metadata_.chunks) {}
  DcpTensors(const DcpTensors&) = delete;
  DcpTensors& operator=(const DcpTensors&) = delete;

  // Entries may be moved out; the rest is constant, except that ReadValue adds tensors.
  std::vector<DcpEntry> TakeEntries() { return std::move(metadata_.entries); }
  const DcpChunks& chunks() const { return metadata_.chunks; }
  int64_t size() const { return static_cast<int64_t>(metadata_.tensors.size()); }
  const DcpTensor& operator[](int i) const { return metadata_.tensors[i]; }

  // The tensors whose bytes are also another's, as the names of a tied weight have in directories that we write: the
  // first of each group, by tensor.
  absl::flat_hash_map<int, int> SameBytes() const;

  // The value of an entry that is not a tensor. Tensors in it are numbered after all others. Before the first read.
  absl::StatusOr<TorchNode> ReadValue(const DcpEntry& entry);

  // Elements `interval` of tensor `index`, which must be inside of it, to `out`. Errors name file and byte range.
  absl::Status Read(int index, const Interval& interval, std::byte* out) const;

  // One place for each chunk of tensor `index`, if every chunk is contiguous: this reads all their archives. `at`:
  // only the part of the tensor with these first indices, which must have chunks of its own, else kUnimplemented.
  absl::StatusOr<std::vector<TensorPlace>> Places(int index, absl::Span<const int64_t> at = {}) const;

  // Bytes of storage that the chunks of tensor `index` view, and their distinct elements. A chunk is a separate
  // archive, so it is the chunk that may expand. Reads all archives; a chunk that cannot be read counts as .metadata
  // describes it, and reading it later reports the error. `at`: only the chunks with elements of that part.
  struct Storage {
    int64_t nbytes = 0;
    int64_t distinct_numel = 0;
  };
  Storage StorageOf(int index, absl::Span<const int64_t> at = {}) const;

  // Distinct elements `interval` of tensor `index`, chunk after chunk, in their order.
  absl::Status ReadDistinct(int index, const Interval& interval, std::byte* out) const;

  // Paths of .metadata and of every file that it names.
  std::vector<std::string> files() const;
  bool has_checksums() const { return files_.has_checksums(); }
  absl::Status VerifyRest() const { return files_.VerifyRest(); }

 private:
  bool HaveSameBytes(const DcpTensor& a, const DcpTensor& b) const;

  // The chunks [first, second) of `tensor` that have elements with the first indices `at`.
  std::pair<uint32_t, uint32_t> ChunksAt(const DcpTensor& tensor, absl::Span<const int64_t> at) const;

  absl::StatusOr<TorchArchive> ReadArchive(const File& file, const DcpSlice& slice) const;
  std::string Describe(const DcpSlice& slice) const;

  // Reads the parts of `box` that chunks [begin, end) hold, which agree with it in all dimensions before `d`. `out`
  // points to element `first` of the tensor, row-major.
  struct BoxRead {
    const DcpTensor& tensor;
    const Box& box;
    int64_t first = 0;
    std::byte* out = nullptr;
  };
  absl::Status ReadBox(const BoxRead& read, size_t d, uint32_t begin, uint32_t end) const;
  absl::Status ReadPart(const BoxRead& read, uint32_t chunk) const;

  absl::StatusOr<DcpChunkPlace> PlaceOf(const DcpTensor& tensor, uint32_t chunk) const;
  absl::StatusOr<DcpChunkPlace> ReadPlace(const DcpTensor& tensor, uint32_t chunk, const DcpSlice& slice) const;
  DistinctElements DistinctOf(uint32_t chunk, const DcpChunkPlace& place) const;

  const std::string path_;
  DcpMetadata metadata_;  // constant once all values are read
  InnerTensors inner_;    // the same
  const TensorSourceOptions options_;
  mutable FilePool files_;
  mutable std::mutex mutex_;
  mutable ChunkPlaces places_;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_TENSORS_H_
