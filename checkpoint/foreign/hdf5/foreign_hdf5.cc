// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/hdf5/foreign_hdf5.h"

#include <hdf5.h>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/hdf5/hdf5_library.h"

namespace fsdp {
namespace {

void MustBe(bool done) {
  if (!done) CheckFailed("HDF5 cannot make a file for a test", __FILE__, __LINE__);
}

}  // namespace

ForeignHdf5::ForeignHdf5(const std::string& path) {
  const Hdf5LibraryCall call;
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // The oldest format that the library still writes, as in the files of most programs.
  MustBe(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0);
  file_ = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get());
  create_ = H5Pcreate(H5P_LINK_CREATE);
  // Tests give paths in any order, so the library creates missing groups.
  MustBe(file_ >= 0 && H5Pset_create_intermediate_group(create_, 1) >= 0);
}

// Closing writes the library's cached metadata; until then the file is incomplete.
ForeignHdf5::~ForeignHdf5() {
  const Hdf5LibraryCall call;
  MustBe(H5Pclose(create_) >= 0 && H5Fclose(file_) >= 0);
}

void ForeignHdf5::AddDataset(const std::string& path, const std::vector<float>& values) {
  const Hdf5LibraryCall call;
  const hsize_t count = values.size();
  const Hdf5Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const Hdf5Handle dataset(
      H5Dcreate2(file_, path.c_str(), H5T_IEEE_F32LE, space.get(), create_, H5P_DEFAULT, H5P_DEFAULT), H5Dclose);
  MustBe(dataset.ok() && H5Dwrite(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
}

void ForeignHdf5::AddGroup(const std::string& path) {
  const Hdf5LibraryCall call;
  const Hdf5Handle group(H5Gcreate2(file_, path.c_str(), create_, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  MustBe(group.ok());
}

void ForeignHdf5::AddNamedDatatype(const std::string& path) {
  const Hdf5LibraryCall call;
  const Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  MustBe(H5Tcommit2(file_, path.c_str(), type.get(), create_, H5P_DEFAULT, H5P_DEFAULT) >= 0);
}

void ForeignHdf5::AddHardLink(const std::string& path, const std::string& target) {
  const Hdf5LibraryCall call;
  MustBe(H5Lcreate_hard(file_, target.c_str(), file_, path.c_str(), create_, H5P_DEFAULT) >= 0);
}

void ForeignHdf5::AddSoftLink(const std::string& path, const std::string& target) {
  const Hdf5LibraryCall call;
  MustBe(H5Lcreate_soft(target.c_str(), file_, path.c_str(), create_, H5P_DEFAULT) >= 0);
}

void ForeignHdf5::AddExternalLink(const std::string& path, const std::string& file, const std::string& target) {
  const Hdf5LibraryCall call;
  MustBe(H5Lcreate_external(file.c_str(), target.c_str(), file_, path.c_str(), create_, H5P_DEFAULT) >= 0);
}

}  // namespace fsdp
