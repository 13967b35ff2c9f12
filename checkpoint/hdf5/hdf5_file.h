// SPDX-License-Identifier: Apache-2.0
//
// Hdf5File: writes HDF5. It lays out a new file in memory: groups, contiguous datasets whose bytes are written later,
// virtual datasets, attributes; and returns the image, which has every byte that HDF5 itself writes, for the caller to
// copy to a disk. It reads nothing through HDF5; hdf5_listing.h does that for foreign files, confined. Equal calls give
// equal bytes.
//
//   FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Hdf5File> file, Hdf5File::Create({}));
//   FSDP_RETURN_IF_ERROR(file->AddGroup("/model", {}));
//   FSDP_ASSIGN_OR_RETURN(int64_t offset, file->AddDataset("/model/w", {}, DType::kFloat32, {4, 8}));
//   FSDP_ASSIGN_OR_RETURN(MemoryFile image, file->Close());
//
// One thread at a time enters the library, for any of its builds; its error stack is returned as absl::Status
// (kInternal). An Hdf5File is used by one thread.
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
#include "fsdp/tensor/run_metadata.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// HDF5's limit.
inline constexpr int kMaxHdf5Rank = 32;

struct Hdf5FileOptions {
  bool virtual_datasets = false;  // raises the file's version to HDF5 1.10; otherwise 1.8 can read it
  bool describes_all = false;     // the attribute "dtype" of every dataset, for people
  bool keeps_order = false;       // a listing by h5py has the order in which objects were added, not the order of names
  int64_t metadata_bytes = 2048;  // estimate of the metadata's size; HDF5 allocates metadata in blocks of this size
};

// A part of a virtual dataset: its elements `interval` are stored in dataset `dataset`, of sizes `dims`, in file
// `file`. A source with more elements than the interval must have one dimension; its elements from `begin` are shown.
struct VirtualPart {
  Interval interval;
  std::string file;
  std::string dataset;
  std::vector<int64_t> dims;
  int64_t begin = 0;
};

// Bytes of another file, named by its absolute path, that hold some elements of a dataset of this file.
struct ExternalPart {
  std::string file;
  int64_t offset = 0;
  int64_t nbytes = 0;
};

// A part of a virtual dataset: its elements `box` are all elements of dataset `dataset` of the same file.
struct VirtualBox {
  Box box;
  std::string dataset;
};

class Hdf5File final {
 public:
  static absl::StatusOr<std::unique_ptr<Hdf5File>> Create(const Hdf5FileOptions& options);

  // Discards the image unless Close was called.
  ~Hdf5File();
  Hdf5File(const Hdf5File&) = delete;
  Hdf5File& operator=(const Hdf5File&) = delete;

  // Paths are absolute and consist of escaped link names; the groups above must exist. A non-empty `fqn` becomes the
  // attribute "fqn", which stores the true name of an object whose link name is escaped.
  absl::Status AddGroup(const std::string& path, const std::string& fqn);

  // Returns the offset of the dataset's payload in the file; 0 when it has no elements. The space is contiguous and
  // allocated; HDF5 never writes to it.
  absl::StatusOr<int64_t> AddDataset(const std::string& path, const std::string& fqn, DType dtype,
                                     const std::vector<int64_t>& dims);

  // As AddDataset, for one UTF-8 string of max(1, nbytes) bytes, padded with NUL; HDF5 has no string of length 0.
  absl::StatusOr<int64_t> AddText(const std::string& path, const std::string& fqn, int64_t nbytes);

  // A virtual dataset of `parts`. Elements that no part covers read as the fill value: NaN in floating types, otherwise
  // 0.
  absl::Status AddVirtual(const std::string& path, const std::string& fqn, DType dtype, const Shape& shape,
                          const std::vector<VirtualPart>& parts);

  // A virtual dataset of `boxes`, which cover it.
  absl::Status AddVirtualBoxes(const std::string& path, const std::string& fqn, DType dtype, const Shape& shape,
                               const std::vector<VirtualBox>& boxes);

  // A dataset whose elements, row-major, are the bytes `parts` of other files, one part after the other.
  absl::Status AddExternal(const std::string& path, const std::string& fqn, DType dtype,
                           const std::vector<int64_t>& dims, const std::vector<ExternalPart>& parts);

  // A further name of the dataset `target`.
  absl::Status AddHardLink(const std::string& path, const std::string& target);

  // An attribute of the root group. Null is a text, "null".
  absl::Status SetRootAttribute(const std::string& name, const AttributeValue& value);

  // Ends the layout and returns the image, which is exactly as long as the file must be. No other call may follow.
  absl::StatusOr<MemoryFile> Close();

 private:
  struct Handles;

  Hdf5File(MemoryFile image, std::unique_ptr<Handles> handles, bool describes_all);

  MemoryFile image_;
  std::unique_ptr<Handles> handles_;  // the file and property lists; null after Close
  bool describes_all_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_HDF5_HDF5_FILE_H_
