// SPDX-License-Identifier: Apache-2.0
//
// Hdf5Listing: the datasets of an HDF5 file by name, type, shape and place, without their values, and the file's other
// contents: the links that are not followed. HDF5 crashes or loops on files that are damaged in the right places, so
// ListHdf5 is called only in a confined child process (confined_hdf5.h). The child's answer is text, which is decoded
// and checked as any other input.
#ifndef FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_LISTING_H_
#define FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_LISTING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/run_metadata.h"

namespace fsdp {

// A file with more objects is refused.
inline constexpr int64_t kMaxHdf5Objects = 2'000'000;

inline constexpr char kHdf5InAnotherFile[] = "in another file, ";

struct Hdf5Dataset {
  std::string path;  // "/model/transformer.wte.weight": the names of links, not unescaped
  std::string fqn;   // attribute "fqn"; empty when absent
  std::string type;  // a DTypeName, or "text": one string of fixed length; empty for any other type
  std::vector<int64_t> dims;
  int64_t offset = 0;  // of the bytes in the file; 0 without bytes
  int64_t nbytes = 0;

  // Empty when the bytes are contiguous at `offset`. Otherwise the reason why not: "virtual", "chunked", "compact",
  // "not allocated", or kHdf5InAnotherFile and the name of that file.
  std::string layout;
};

// A group with the attribute "name", by which Keras says whose variables are in it.
struct Hdf5Group {
  std::string path;
  std::string name;
};

// A further hard link to a dataset, both in /model: a tied tensor.
struct Hdf5Alias {
  std::string path;
  std::string target;  // the path under which the dataset is listed
};

// A link that is not followed, or an object that is neither group nor dataset.
struct Hdf5LeftOut {
  std::string path;  // of the link; like the other texts, cut to kMaxHdf5LeftOutText bytes

  // "soft link", "external link" or "user-defined link"; "hard link" if another path, the first in the order of names,
  // already represents the object; "named datatype" or "object of an unknown kind".
  std::string kind;

  std::string target;  // the path to which a link points, which need not exist; empty for other kinds
  std::string file;    // of the target of an external link, which is never opened
};

// A root group with more attributes, or with more bytes in them, is read without the rest.
inline constexpr int64_t kMaxHdf5Attributes = 4096;
inline constexpr size_t kMaxHdf5AttributeBytes = 1 << 20;

inline constexpr size_t kMaxHdf5NamedGroups = 200'000;

// A file may have millions of links: only this many are listed, with this many bytes of each text; the rest are
// counted.
inline constexpr int64_t kMaxHdf5LeftOut = 100;
inline constexpr size_t kMaxHdf5LeftOutText = 1024;

struct Hdf5Listing {
  std::vector<Hdf5Dataset> datasets;
  std::vector<Hdf5Group> groups;  // those with a name, at most kMaxHdf5NamedGroups
  std::vector<Hdf5Alias> aliases;
  RunMetadata attributes;             // the scalars among the attributes of the root group
  std::vector<Hdf5LeftOut> left_out;  // the first ones, in the order of the walk
  int64_t left_out_count = 0;         // of all, listed or not
};

// `"/model/b" (soft link to "/model/a")`, for messages.
std::string Describe(const Hdf5LeftOut& left_out);

// As a parameter of ListHdf5, proves that the caller holds the lock of the library.
class Hdf5LibraryCall;

// Lists the open file `fd`, or the HDF5 file that is `part` of it. Follows only hard links, visits each object once,
// under the first of its paths in the order of names, and descends through at most 16 levels of groups. A further hard
// link within /model is an alias; every other link is in Hdf5Listing::left_out. An error names the operation that the
// library failed. Runs in this process: only for confined_hdf5.cc.
absl::StatusOr<Hdf5Listing> ListHdf5(const Hdf5LibraryCall& call, int fd,
                                     const std::optional<Interval>& part = std::nullopt);

// To one JSON text, and back. Names that are not UTF-8 are replaced. kDataLoss for a text that is not a listing. Pure.
std::string EncodeHdf5Listing(const Hdf5Listing& listing);
absl::StatusOr<Hdf5Listing> DecodeHdf5Listing(std::string_view text);

// OK when the bytes of every dataset with an empty layout are inside a file of `file_bytes` bytes, are as many as its
// type and dims require, and no two overlap; else kDataLoss names the dataset. Pure.
absl::Status CheckHdf5Listing(const std::vector<Hdf5Dataset>& datasets, int64_t file_bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_LISTING_H_
