// SPDX-License-Identifier: Apache-2.0
//
// ForeignHdf5: an HDF5 file as other programs write it, with links of every kind, for tests.
#ifndef FSDP_CHECKPOINT_FOREIGN_HDF5_FOREIGN_HDF5_H_
#define FSDP_CHECKPOINT_FOREIGN_HDF5_FOREIGN_HDF5_H_

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

// Paths are absolute; missing groups above a new link are created. A failure of the library ends the program. The file
// is complete once this is destroyed.
class ForeignHdf5 final {
 public:
  explicit ForeignHdf5(const std::string& path);
  ~ForeignHdf5();
  ForeignHdf5(const ForeignHdf5&) = delete;
  ForeignHdf5& operator=(const ForeignHdf5&) = delete;

  // A contiguous dataset of one dimension.
  void AddDataset(const std::string& path, const std::vector<float>& values);

  void AddGroup(const std::string& path);
  void AddNamedDatatype(const std::string& path);
  void AddHardLink(const std::string& path, const std::string& target);
  void AddSoftLink(const std::string& path, const std::string& target);
  void AddExternalLink(const std::string& path, const std::string& file, const std::string& target);

 private:
  int64_t file_ = -1;  // identifiers of the library
  int64_t create_ = -1;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_HDF5_FOREIGN_HDF5_H_
