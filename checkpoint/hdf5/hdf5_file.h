// SPDX-License-Identifier: Apache-2.0
//
// Hdf5File: what writes HDF5. It lays out a new file: groups, contiguous datasets whose bytes come later,
// virtual datasets, attributes; and hands back the image, with every byte that HDF5 itself writes, for somebody else to
// put on a disk. Nothing is read back through HDF5; hdf5_listing.h does that for foreign files, confined. Equal calls
// give equal bytes.
//
//   FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Hdf5File> file, Hdf5File::Create({}));
//   FSDP_RETURN_IF_ERROR(file->AddGroup("/model", {}));
//   FSDP_ASSIGN_OR_RETURN(int64_t offset, file->AddDataset("/model/w", {}, DType::kFloat32, {4, 8}));
//   FSDP_ASSIGN_OR_RETURN(MemoryFile image, file->Close());
//
// The library is entered by one thread at a time, whatever its build; its error stack comes back as absl::Status
// (kInternal). A Hdf5File is used by one thread.
#ifndef FSDP_CHECKPOINT_HDF5_HDF5_FILE_H_
#define FSDP_CHECKPOINT_HDF5_HDF5_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/memory_file.h"
#include "fsdp/tensor/box.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// HDF5's limit.
inline constexpr int kMaxHdf5Rank = 32;

struct Hdf5FileOptions {
  bool virtual_datasets = false;  // raises the file's version to that of HDF5 1.10; otherwise 1.8 reads it
  int64_t metadata_bytes = 2048;  // about how much metadata is to come; metadata lie together in blocks of this size
};

// A part of a virtual dataset: elements `interval` are those of dataset `dataset` of file `file`, which has sizes
// `dims`. Where it has more elements than the interval, it has one dimension, and they are those from `begin` on.
struct VirtualPart {
  Interval interval;
  std::string file;
  std::string dataset;
  std::vector<int64_t> dims;
  int64_t begin = 0;
};

// Bytes of another file, by its absolute path: some elements of a dataset that is not stored in this one.
struct ExternalPart {
  std::string file;
  int64_t offset = 0;
  int64_t nbytes = 0;
};

// A part of a virtual dataset: `box` is what dataset `dataset` of the same file holds.
struct VirtualBox {
  Box box;
  std::string dataset;
};

class Hdf5File final {
 public:
  static absl::StatusOr<std::unique_ptr<Hdf5File>> Create(const Hdf5FileOptions& options);

  // Discards what was not closed.
  ~Hdf5File();
  Hdf5File(const Hdf5File&) = delete;
  Hdf5File& operator=(const Hdf5File&) = delete;

  // Paths are absolute, of escaped link names; the groups above exist. A `fqn` that is not empty becomes the attribute
  // that keeps the true name of an escaped object.
  absl::Status AddGroup(const std::string& path, const std::string& fqn);

  // The offset of its payload in the file; 0 where it has no elements. Contiguous, allocated, never filled.
  absl::StatusOr<int64_t> AddDataset(const std::string& path, const std::string& fqn, DType dtype,
                                     const std::vector<int64_t>& dims);

  // As AddDataset, for one UTF-8 string of max(1, nbytes) bytes, padded with NUL.
  absl::StatusOr<int64_t> AddText(const std::string& path, const std::string& fqn, int64_t nbytes);

  // A tensor shown through `parts`; elements of none have the fill value: NaN in floating types, otherwise 0.
  absl::Status AddVirtual(const std::string& path, const std::string& fqn, DType dtype, const Shape& shape,
                          const std::vector<VirtualPart>& parts);

  // The same through boxes.
  absl::Status AddVirtualBoxes(const std::string& path, const std::string& fqn, DType dtype, const Shape& shape,
                               const std::vector<VirtualBox>& boxes);

  // A tensor whose elements, row-major, are those bytes of other files, one part after the other.
  absl::Status AddExternal(const std::string& path, const std::string& fqn, DType dtype,
                           const std::vector<int64_t>& dims, const std::vector<ExternalPart>& parts);

  // A text attribute of the root group.
  absl::Status SetRootAttribute(const std::string& name, const std::string& text);

  // Ends the layout. The image is exactly as long as the file.
  absl::StatusOr<MemoryFile> Close();

 private:
  struct Handles;

  Hdf5File(MemoryFile image, std::unique_ptr<Handles> handles);

  MemoryFile image_;
  std::unique_ptr<Handles> handles_;  // the file and what is made once; null after Close
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_HDF5_HDF5_FILE_H_
