// SPDX-License-Identifier: Apache-2.0
//
// Hdf5Listing: the datasets of an HDF5 file by name, type, shape and place, and nothing of their values. HDF5 crashes
// and loops on files that are damaged in the right places, so ListHdf5 is called in a confined child process alone
// (confined_hdf5.h), and what comes from there is text, decoded and checked as any other input.
#ifndef FSDP_CHECKPOINT_HDF5_HDF5_LISTING_H_
#define FSDP_CHECKPOINT_HDF5_HDF5_LISTING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

// More objects than this are not listed.
inline constexpr int64_t kMaxHdf5Objects = 2'000'000;

struct Hdf5Dataset {
  std::string path;  // "/model/transformer.wte.weight", of links as the file has them
  std::string fqn;   // attribute "fqn"; empty where there is none
  std::string type;  // a DTypeName, or "text": one string of fixed length; empty for any other type
  std::vector<int64_t> dims;
  int64_t offset = 0;  // of the bytes in the file; 0 where there are none
  int64_t nbytes = 0;

  // Why the bytes are not simply there: "virtual", "chunked", "compact", "in another file", "not allocated". Empty when
  // they are.
  std::string layout;
};

// Proof that the caller is inside the library, alone.
class Hdf5LibraryCall;

// Follows hard links only, each object once, through at most 16 levels of groups. An error names what the library could
// not do. In this process: for confined_hdf5.cc.
absl::StatusOr<std::vector<Hdf5Dataset>> ListHdf5(const Hdf5LibraryCall& call, const std::string& path);

// As one JSON text, and back; kDataLoss for anything that ListHdf5 cannot have said. Pure.
std::string EncodeHdf5Listing(const std::vector<Hdf5Dataset>& datasets);
absl::StatusOr<std::vector<Hdf5Dataset>> DecodeHdf5Listing(std::string_view text);

// OK when the bytes of every dataset with an empty layout lie inside a file of `file_bytes` bytes, are as many as its
// type and dims say, and no two overlap; else kDataLoss names the dataset. Pure.
absl::Status CheckHdf5Listing(const std::vector<Hdf5Dataset>& datasets, int64_t file_bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_HDF5_HDF5_LISTING_H_
