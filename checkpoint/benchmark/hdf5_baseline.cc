// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/benchmark/hdf5_baseline.h"

#include <fcntl.h>
#include <hdf5.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

absl::Status Failed(const std::string& what, const std::string& path) {
  return absl::InternalError(absl::StrCat(what, " of ", path, " failed"));
}

// One dataset with one H5Dwrite of the whole tensor.
bool WriteDataset(hid_t file, hid_t creation, const BenchmarkTensors::Entry& tensor, const std::byte* data) {
  const hsize_t dims[] = {static_cast<hsize_t>(tensor.shape.dim(0)), static_cast<hsize_t>(tensor.shape.dim(1))};
  const hid_t space = H5Screate_simple(2, dims, nullptr);
  const hid_t dataset =
      H5Dcreate2(file, tensor.name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  const bool written = H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0;
  H5Dclose(dataset);
  H5Sclose(space);
  return written;
}

}  // namespace

// The fastest settings of HDF5 for this, so that the comparison is fair: 1.8 format, datasets of 2 KiB and more aligned
// to pages, no fill values.
absl::Status WriteByHdf5(const BenchmarkTensors& tensors, const std::string& path) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
  H5Pset_alignment(access, 2048, 4096);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access);
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER);
  bool written = file >= 0;
  for (const BenchmarkTensors::Entry& tensor : tensors.entries()) {
    written = written && WriteDataset(file, creation, tensor, tensors.saved().data() + tensor.offset);
  }
  H5Pclose(creation);
  H5Pclose(access);
  if (H5Fclose(file) < 0 || !written) return Failed("H5Dwrite", path);
  const int fd = open(path.c_str(), O_WRONLY);
  const bool synced = fsync(fd) == 0;
  close(fd);
  return synced ? absl::OkStatus() : Failed("fsync", path);
}

// One H5Dread for each tensor, directly into its memory.
absl::Status ReadByHdf5(const BenchmarkTensors& tensors, const std::string& path) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  bool read = file >= 0;
  for (const BenchmarkTensors::Entry& tensor : tensors.entries()) {
    const hid_t dataset = H5Dopen2(file, tensor.name.c_str(), H5P_DEFAULT);
    read = read && H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                           tensors.loaded().data() + tensor.offset) >= 0;
    H5Dclose(dataset);
  }
  H5Fclose(file);
  return read ? absl::OkStatus() : Failed("H5Dread", path);
}

}  // namespace fsdp
