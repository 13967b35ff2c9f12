// SPDX-License-Identifier: Apache-2.0
//
// Interfaces that only some formats have in addition to TensorSource, so that other formats need no code for them:
//
//   TensorViews         tensors that are views of storages (torch, DCP) or are stored compressed: a tensor may be
//                       larger than the bytes that hold it (expansion.h)
//   CoveringChecksums   checksums of more bytes than a read needs: zip's, of a whole entry
//
// Callers use the functions at the end, which take any source.
#ifndef FSDP_CHECKPOINT_SOURCE_TENSOR_VIEWS_H_
#define FSDP_CHECKPOINT_SOURCE_TENSOR_VIEWS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The bytes behind a tensor of a format with views.
struct TensorStorage {
  int64_t id = 0;             // equal for views of one storage
  int64_t nbytes = 0;         // of the whole storage
  int64_t view = 0;           // equal for equal views of one storage: the same elements in the same order
  int64_t touched_bytes = 0;  // from the first element to the last, in the storage

  // The number of elements that TensorViews::ReadDistinct reads: each element of the storage that the tensor shows,
  // once. 0: ReadDistinct cannot read it. Less than the tensor's numel if it is expanded or its windows overlap.
  int64_t distinct_numel = 0;
};

class TensorViews {
 public:
  virtual ~TensorViews() = default;

  // The storage of a tensor; nullopt: the file has each of its elements once. See expansion.h for its use. May read
  // metadata.
  virtual std::optional<TensorStorage> Storage(const StateKey& key) const = 0;

  // Reads elements `interval` of the TensorStorage::distinct_numel elements of a tensor, in the order of the file and
  // in the stored dtype. Errors as for TensorSource::Read; kUnimplemented if distinct_numel is 0.
  virtual absl::Status ReadDistinct(const StateKey& key, const Interval& interval, void* out) const = 0;
};

class CoveringChecksums {
 public:
  virtual ~CoveringChecksums() = default;

  // Compares the checksums of which previous reads have read only some of the covered bytes: reads the remaining bytes.
  // kDataLoss as in TensorSource::Read.
  virtual absl::Status VerifyRest() const = 0;
};

// TensorViews::Storage of any source.
inline std::optional<TensorStorage> StorageOf(const TensorSource& source, const StateKey& key) {
  return source.views() == nullptr ? std::nullopt : source.views()->Storage(key);
}

// CoveringChecksums::VerifyRest of any source. Call it after the last read.
inline absl::Status VerifyRest(const TensorSource& source) {
  return source.covering_checksums() == nullptr ? absl::OkStatus() : source.covering_checksums()->VerifyRest();
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_TENSOR_VIEWS_H_
