// SPDX-License-Identifier: Apache-2.0
//
// The library writes only metadata. Datasets are contiguous, allocated early and never filled, so HDF5 assigns each one
// its place in the file and does not touch the bytes; the image is a memory file, in which the holes for payload take
// no memory. This makes HDF5 fast enough (it never sees the payload) and lets our own writers use direct I/O and
// digests.
//
// Equal calls must give equal bytes, for digests of unchanged files and for tests: no object keeps time stamps, and the
// bounds of the library's version are fixed, so another release of HDF5 writes the same format.
#include "fsdp/checkpoint/hdf5/hdf5_file.h"

#include <hdf5.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/hdf5/hdf5_descriptor.h"
#include "fsdp/checkpoint/hdf5/hdf5_library.h"
#include "fsdp/checkpoint/hdf5/hdf5_types.h"
#include "fsdp/tensor/box.h"

namespace fsdp {
namespace {

// Datasets of at least kAlignmentThreshold bytes begin at a multiple of kAlignment, for direct I/O. Aligning smaller
// ones would waste too much space.
constexpr hsize_t kAlignmentThreshold = 2048;
constexpr hsize_t kAlignment = 4096;

using Handle = Hdf5Handle;
using LibraryCall = Hdf5LibraryCall;

Handle PropertyList(hid_t list_class) { return {H5Pcreate(list_class), H5Pclose}; }

Handle Space(const std::vector<int64_t>& dims) {
  if (dims.empty()) return {H5Screate(H5S_SCALAR), H5Sclose};
  const std::vector<hsize_t> sizes(dims.begin(), dims.end());
  return {H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr), H5Sclose};
}

// Floats of 8 and of 4 bits: HDF5 stores them as integers, with the dtype in an attribute.
bool IsByteOfFloats(DType dtype) { return (IsFloatingPoint(dtype) || IsPacked(dtype)) && SizeOf(dtype) == 1; }

// The little-endian bytes of a NaN of `dtype`, as the fill value; nullopt for types without NaN, which are filled with
// 0. A reader of a virtual dataset whose rank file is missing then sees NaN instead of plausible zeros.
std::optional<std::array<uint8_t, 16>> FillBytes(DType dtype) {
  using Bytes = std::array<uint8_t, 16>;
  switch (dtype) {
    case DType::kFloat64:
      return Bytes{0, 0, 0, 0, 0, 0, 0xF8, 0x7F};
    case DType::kFloat32:
      return Bytes{0, 0, 0xC0, 0x7F};
    case DType::kBFloat16:
      return Bytes{0xC0, 0x7F};
    case DType::kFloat16:
      return Bytes{0x00, 0x7E};
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
      return Bytes{0x7F};
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2FNUZ:
      return Bytes{0x80};
    case DType::kFloat8E8M0FNU:
      return Bytes{0xFF};
    case DType::kComplex32:
      return Bytes{0x00, 0x7E, 0x00, 0x7E};
    case DType::kComplex64:
      return Bytes{0, 0, 0xC0, 0x7F, 0, 0, 0xC0, 0x7F};
    case DType::kComplex128:
      return Bytes{0, 0, 0, 0, 0, 0, 0xF8, 0x7F, 0, 0, 0, 0, 0, 0, 0xF8, 0x7F};
    default:
      return std::nullopt;
  }
}

// A scalar attribute of `type`, with the value at `value`.
absl::Status WriteAttribute(hid_t object, const std::string& name, hid_t type, const void* value) {
  const Handle space = Space({});
  const Handle attribute(H5Acreate2(object, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!attribute.ok() || H5Awrite(attribute.get(), type, value) < 0) return Hdf5Error("write attribute", name);
  return absl::OkStatus();
}

// A string of variable length, which h5py shows as str.
absl::Status WriteAttribute(hid_t object, const std::string& name, const std::string& text) {
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  const char* const value = text.c_str();
  if (H5Tset_size(type.get(), H5T_VARIABLE) < 0 || H5Tset_cset(type.get(), H5T_CSET_UTF8) < 0) {
    return Hdf5Error("make a type for attribute", name);
  }
  return WriteAttribute(object, name, type.get(), &value);
}

// Writes the attributes of an object: "dtype" if the HDF5 type does not determine the dtype, and "fqn" if there is one.
absl::Status Describe(hid_t object, const std::string& fqn, std::optional<DType> dtype, bool describes_all = false) {
  if (dtype && (IsByteOfFloats(*dtype) || describes_all)) {
    FSDP_RETURN_IF_ERROR(WriteAttribute(object, "dtype", std::string(DTypeName(*dtype))));
  }
  return fqn.empty() ? absl::OkStatus() : WriteAttribute(object, "fqn", fqn);
}

// In the source names of a virtual dataset HDF5 replaces %b by a block number and %% by %, so every % is doubled.
std::string DoublePercent(const std::string& path) {
  std::string doubled;
  for (const char c : path) doubled.append(c == '%' ? 2 : 1, c);
  return doubled;
}

// Selects elements `interval` of a dataset of `shape`: as a union of boxes, since a hyperslab is a box and an interval
// that begins or ends inside a row is not.
bool Select(hid_t space, const Shape& shape, const Interval& interval) {
  if (shape.rank() == 0) return H5Sselect_all(space) >= 0;
  // At most 2 * rank - 1 boxes (BoxesOf), so the union stays small.
  H5S_seloper_t operation = H5S_SELECT_SET;
  for (const Box& box : BoxesOf(shape, interval)) {
    const std::vector<hsize_t> start(box.start.begin(), box.start.end());
    const std::vector<hsize_t> count(box.count.begin(), box.count.end());
    if (H5Sselect_hyperslab(space, operation, start.data(), nullptr, count.data(), nullptr) < 0) return false;
    operation = H5S_SELECT_OR;
  }
  return true;
}

}  // namespace

struct Hdf5File::Handles {
  Handle link_creation;  // UTF-8 names
  Handle group_creation;
  Handle dataset_creation;
  std::map<DType, Handle> types;  // of the datasets so far
  Handle file;                    // closed before the others, but after `group`, which would keep it open
  std::string group_path;         // of `group`, with a slash at the end
  Handle group;                   // of the last dataset

  // The type of the elements in the file. Kept, like `group`: a file may have a million datasets, and for each a type
  // would be made and a path followed.
  const Handle& TypeOf(DType dtype) {
    Handle& type = types[dtype];
    if (!type.ok()) type = Hdf5TypeOf(dtype);
    return type;
  }

  // The group above `path`, an absolute path, and the name in it.
  std::pair<hid_t, const char*> Place(const std::string& path) {
    const size_t slash = path.rfind('/') + 1;
    if (!group.ok() || path.compare(0, slash, group_path) != 0) {
      group = Handle(H5Gopen2(file.get(), path.substr(0, slash).c_str(), H5P_DEFAULT), H5Gclose);
      group_path = path.substr(0, slash);
    }
    return {group.get(), path.c_str() + slash};
  }
};

absl::StatusOr<std::unique_ptr<Hdf5File>> Hdf5File::Create(const Hdf5FileOptions& options) {
  FSDP_ASSIGN_OR_RETURN(MemoryFile image, MemoryFile::Create());
  const LibraryCall call;
  auto made = std::make_unique<Handles>();
  made->link_creation = PropertyList(H5P_LINK_CREATE);
  made->group_creation = PropertyList(H5P_GROUP_CREATE);
  made->dataset_creation = PropertyList(H5P_DATASET_CREATE);
  const hid_t dataset = made->dataset_creation.get();
  const bool lists_ok =
      H5Pset_char_encoding(made->link_creation.get(), H5T_CSET_UTF8) >= 0 &&
      H5Pset_obj_track_times(made->group_creation.get(), false) >= 0 && H5Pset_layout(dataset, H5D_CONTIGUOUS) >= 0 &&
      H5Pset_alloc_time(dataset, H5D_ALLOC_TIME_EARLY) >= 0 && H5Pset_fill_time(dataset, H5D_FILL_TIME_NEVER) >= 0 &&
      H5Pset_obj_track_times(dataset, false) >= 0;
  const Handle access = PropertyList(H5P_FILE_ACCESS);
  const Handle creation = PropertyList(H5P_FILE_CREATE);
  constexpr unsigned kOrder = H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED;
  if (options.keeps_order && (H5Pset_link_creation_order(made->group_creation.get(), kOrder) < 0 ||
                              H5Pset_link_creation_order(creation.get(), kOrder) < 0)) {
    return Hdf5Error("prepare", "a file");
  }
  // Virtual datasets need the format of 1.10; all other files stay readable for HDF5 1.8.
  const H5F_libver_t version = options.virtual_datasets ? H5F_LIBVER_V110 : H5F_LIBVER_V18;
  const bool access_ok = lists_ok && SetDescriptor(access.get(), image.descriptor()) &&
                         H5Pset_libver_bounds(access.get(), version, version) >= 0 &&
                         H5Pset_alignment(access.get(), kAlignmentThreshold, kAlignment) >= 0 &&
                         H5Pset_meta_block_size(access.get(), options.metadata_bytes) >= 0 &&
                         H5Pset_obj_track_times(creation.get(), false) >= 0;
  if (!access_ok) return Hdf5Error("prepare", "a file");
  // The name is used only in messages of the library; the driver takes the descriptor.
  made->file = Handle(H5Fcreate("a file in memory", H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose);
  if (!made->file.ok()) return Hdf5Error("create", "a file in memory");
  return std::unique_ptr<Hdf5File>(new Hdf5File(std::move(image), std::move(made), options.describes_all));
}

Hdf5File::Hdf5File(MemoryFile image, std::unique_ptr<Handles> handles, bool describes_all)
    : image_(std::move(image)), handles_(std::move(handles)), describes_all_(describes_all) {}

Hdf5File::~Hdf5File() {
  const LibraryCall call;
  handles_.reset();
}

absl::Status Hdf5File::AddGroup(const std::string& path, const std::string& fqn) {
  const LibraryCall call;
  const Handle group(H5Gcreate2(handles_->file.get(), path.c_str(), handles_->link_creation.get(),
                                handles_->group_creation.get(), H5P_DEFAULT),
                     H5Gclose);
  return group.ok() ? Describe(group.get(), fqn, std::nullopt) : Hdf5Error("create group", path);
}

absl::StatusOr<int64_t> Hdf5File::AddDataset(const std::string& path, const std::string& fqn, DType dtype,
                                             const std::vector<int64_t>& dims) {
  const LibraryCall call;
  const Handle& type = handles_->TypeOf(dtype);
  const Handle space = Space(dims);
  const auto [group, name] = handles_->Place(path);
  const Handle dataset(H5Dcreate2(group, name, type.get(), space.get(), handles_->link_creation.get(),
                                  handles_->dataset_creation.get(), H5P_DEFAULT),
                       H5Dclose);
  if (!dataset.ok()) return Hdf5Error("create dataset", path);
  FSDP_RETURN_IF_ERROR(Describe(dataset.get(), fqn, dtype, describes_all_));
  // HDF5 allocates nothing for a dataset without elements, and has no offset for it.
  if (H5Sget_simple_extent_npoints(space.get()) == 0) return 0;
  const haddr_t offset = H5Dget_offset(dataset.get());
  return offset != HADDR_UNDEF ? absl::StatusOr<int64_t>(static_cast<int64_t>(offset))
                               : Hdf5Error("place dataset", path);
}

absl::StatusOr<int64_t> Hdf5File::AddText(const std::string& path, const std::string& fqn, int64_t nbytes) {
  const LibraryCall call;
  const Handle type = Hdf5TextType(nbytes);
  const Handle space = Space({});
  const Handle dataset(H5Dcreate2(handles_->file.get(), path.c_str(), type.get(), space.get(),
                                  handles_->link_creation.get(), handles_->dataset_creation.get(), H5P_DEFAULT),
                       H5Dclose);
  if (!dataset.ok()) return Hdf5Error("create dataset", path);
  FSDP_RETURN_IF_ERROR(Describe(dataset.get(), fqn, std::nullopt));
  const haddr_t offset = H5Dget_offset(dataset.get());
  return offset != HADDR_UNDEF ? absl::StatusOr<int64_t>(static_cast<int64_t>(offset))
                               : Hdf5Error("place dataset", path);
}

absl::Status Hdf5File::AddVirtual(const std::string& path, const std::string& fqn, DType dtype, const Shape& shape,
                                  const std::vector<VirtualPart>& parts) {
  const LibraryCall call;
  const Handle type = Hdf5TypeOf(dtype);
  const Handle space = Space({shape.dims().begin(), shape.dims().end()});
  const Handle creation = PropertyList(H5P_DATASET_CREATE);
  const auto fill = FillBytes(dtype);
  if (H5Pset_obj_track_times(creation.get(), false) < 0 ||
      (fill && H5Pset_fill_value(creation.get(), type.get(), fill->data()) < 0)) {
    return Hdf5Error("prepare dataset", path);
  }
  for (const VirtualPart& part : parts) {
    const Handle source = Space(part.dims);
    const hsize_t start = part.begin;
    const hsize_t count = part.interval.size();
    // A flat source, such as a rank's part of a flat parameter, holds several tensors; a source with the size of the
    // interval is mapped whole.
    const bool is_part = part.dims.size() == 1 && part.dims[0] != part.interval.size();
    if ((is_part && H5Sselect_hyperslab(source.get(), H5S_SELECT_SET, &start, nullptr, &count, nullptr) < 0) ||
        !Select(space.get(), shape, part.interval) ||
        H5Pset_virtual(creation.get(), space.get(), DoublePercent(part.file).c_str(),
                       DoublePercent(part.dataset).c_str(), source.get()) < 0) {
      return Hdf5Error("map dataset", path);
    }
  }
  H5Sselect_all(space.get());
  const Handle dataset(H5Dcreate2(handles_->file.get(), path.c_str(), type.get(), space.get(),
                                  handles_->link_creation.get(), creation.get(), H5P_DEFAULT),
                       H5Dclose);
  return dataset.ok() ? Describe(dataset.get(), fqn, dtype, describes_all_) : Hdf5Error("create virtual dataset", path);
}

absl::Status Hdf5File::AddVirtualBoxes(const std::string& path, const std::string& fqn, DType dtype, const Shape& shape,
                                       const std::vector<VirtualBox>& boxes) {
  const LibraryCall call;
  const Handle type = Hdf5TypeOf(dtype);
  const Handle space = Space({shape.dims().begin(), shape.dims().end()});
  const Handle creation = PropertyList(H5P_DATASET_CREATE);
  if (H5Pset_obj_track_times(creation.get(), false) < 0) return Hdf5Error("prepare dataset", path);
  for (const auto& [box, dataset] : boxes) {
    const Handle source = Space(box.count);
    const std::vector<hsize_t> start(box.start.begin(), box.start.end());
    const std::vector<hsize_t> count(box.count.begin(), box.count.end());
    if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) < 0 ||
        H5Pset_virtual(creation.get(), space.get(), ".", DoublePercent(dataset).c_str(), source.get()) < 0) {
      return Hdf5Error("map dataset", path);
    }
  }
  H5Sselect_all(space.get());
  const Handle dataset(H5Dcreate2(handles_->file.get(), path.c_str(), type.get(), space.get(),
                                  handles_->link_creation.get(), creation.get(), H5P_DEFAULT),
                       H5Dclose);
  return dataset.ok() ? Describe(dataset.get(), fqn, dtype, describes_all_) : Hdf5Error("create virtual dataset", path);
}

absl::Status Hdf5File::AddExternal(const std::string& path, const std::string& fqn, DType dtype,
                                   const std::vector<int64_t>& dims, const std::vector<ExternalPart>& parts) {
  const LibraryCall call;
  const Handle type = Hdf5TypeOf(dtype);
  const Handle space = Space(dims);
  const Handle creation = PropertyList(H5P_DATASET_CREATE);
  bool prepared = H5Pset_obj_track_times(creation.get(), false) >= 0 &&
                  H5Pset_layout(creation.get(), H5D_CONTIGUOUS) >= 0 &&
                  H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER) >= 0;
  for (const ExternalPart& part : parts) {
    prepared = prepared && H5Pset_external(creation.get(), part.file.c_str(), static_cast<off_t>(part.offset),
                                           static_cast<hsize_t>(part.nbytes)) >= 0;
  }
  if (!prepared) return Hdf5Error("prepare dataset", path);
  const Handle dataset(H5Dcreate2(handles_->file.get(), path.c_str(), type.get(), space.get(),
                                  handles_->link_creation.get(), creation.get(), H5P_DEFAULT),
                       H5Dclose);
  return dataset.ok() ? Describe(dataset.get(), fqn, dtype, describes_all_)
                      : Hdf5Error("create external dataset", path);
}

absl::Status Hdf5File::AddHardLink(const std::string& path, const std::string& target) {
  const LibraryCall call;
  const hid_t file = handles_->file.get();
  const herr_t made =
      H5Lcreate_hard(file, target.c_str(), file, path.c_str(), handles_->link_creation.get(), H5P_DEFAULT);
  return made >= 0 ? absl::OkStatus() : Hdf5Error("link", path);
}

absl::Status Hdf5File::SetRootAttribute(const std::string& name, const AttributeValue& value) {
  const LibraryCall call;
  const Handle root(H5Gopen2(handles_->file.get(), "/", H5P_DEFAULT), H5Gclose);
  if (!root.ok()) return Hdf5Error("open", "/");
  if (const auto* const text = std::get_if<std::string>(&value)) return WriteAttribute(root.get(), name, *text);
  if (const auto* const number = std::get_if<int64_t>(&value)) {
    return WriteAttribute(root.get(), name, H5T_STD_I64LE, number);
  }
  if (const auto* const number = std::get_if<double>(&value)) {
    return WriteAttribute(root.get(), name, H5T_IEEE_F64LE, number);
  }
  if (const auto* const truth = std::get_if<bool>(&value)) {
    const Handle type = Hdf5TypeOf(DType::kBool);
    const int8_t byte = *truth ? 1 : 0;
    return type.ok() ? WriteAttribute(root.get(), name, type.get(), &byte) : Hdf5Error("make a type for", name);
  }
  return WriteAttribute(root.get(), name, std::string("null"));
}

// HDF5 writes most metadata when the file is closed, so only now is the image complete, and an error of closing is an
// error of the image.
absl::StatusOr<MemoryFile> Hdf5File::Close() {
  const LibraryCall call;
  handles_->group = Handle();
  const bool closed = handles_->file.Close();
  const absl::Status status = closed ? absl::OkStatus() : Hdf5Error("close", "a file in memory");
  handles_.reset();
  if (!status.ok()) return status;
  return std::move(image_);
}

}  // namespace fsdp
