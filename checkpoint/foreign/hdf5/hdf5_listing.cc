// SPDX-License-Identifier: Apache-2.0
//
// The half of hdf5_listing.h that calls the library; hdf5_listing_json.cc is the other. It runs in the confined child,
// on files that may be crafted to attack it, so it uses as little of the library as it can: no values; the targets of
// soft and external links as text, which is never followed; each object once (a hard link can make a group its own
// descendant); bounded depth, names and counts. It recognises a type by its properties and not by its name, since h5py
// and other writers spell the same type in several ways.
#include "fsdp/checkpoint/foreign/hdf5/hdf5_listing.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/hdf5/hdf5_descriptor.h"
#include "fsdp/checkpoint/hdf5/hdf5_library.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {
namespace {

// One spelling for every HDF5 version: 1.12 gave these names to other functions, which have tokens and no addresses.
#if H5_VERSION_GE(1, 12, 0)
using LinkInfo = H5L_info1_t;
using ObjectInfo = H5O_info1_t;
constexpr auto IterateLinks = H5Literate1;
#else
using LinkInfo = H5L_info_t;
using ObjectInfo = H5O_info_t;
constexpr auto IterateLinks = H5Literate;
#endif

constexpr int kMaxDepth = 16;
constexpr char kName[] = "the file";  // in errors; the caller knows its path
constexpr size_t kMaxAttributeBytes = 64 * 1024;

// The string attribute `name` of an object; empty if it is missing or is not of the kind that hdf5_file.cc writes.
std::string TextAttribute(hid_t object, const char* name) {
  if (H5Aexists(object, name) <= 0) return "";
  const Hdf5Handle attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose);
  const Hdf5Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const Hdf5Handle space(H5Aget_space(attribute.get()), H5Sclose);
  if (!attribute.ok() || H5Tis_variable_str(type.get()) <= 0 || H5Sget_simple_extent_npoints(space.get()) != 1) {
    return "";
  }
  const Hdf5Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
  // Allocated by the library, so it must be freed by the library (H5free_memory).
  char* value = nullptr;
  std::string text;
  if (H5Tset_size(memory.get(), H5T_VARIABLE) >= 0 && H5Tset_cset(memory.get(), H5Tget_cset(type.get())) >= 0 &&
      H5Aread(attribute.get(), memory.get(), &value) >= 0 && value != nullptr) {
    // Bounded by strnlen: a hostile text need not end, and must not fill the child's memory twice.
    text.assign(value, strnlen(value, kMaxAttributeBytes));
  }
  if (value != nullptr) H5free_memory(value);
  return text;
}

bool IsEqual(hid_t type, hid_t other) { return H5Tequal(type, other) > 0; }

// Compares the fields of the type, because HDF5 calls committed types and other spellings of bfloat16 unequal to ours.
bool IsBFloat16(hid_t type) {
  size_t sign = 0;
  size_t exponent = 0;
  size_t exponent_bits = 0;
  size_t mantissa = 0;
  size_t mantissa_bits = 0;
  return H5Tget_size(type) == 2 && H5Tget_order(type) == H5T_ORDER_LE && H5Tget_ebias(type) == 127 &&
         H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) >= 0 && sign == 15 &&
         exponent == 7 && exponent_bits == 8 && mantissa == 0 && mantissa_bits == 7;
}

bool IsFloat16(hid_t type) {
  size_t sign = 0;
  size_t exponent = 0;
  size_t exponent_bits = 0;
  size_t mantissa = 0;
  size_t mantissa_bits = 0;
  return H5Tget_size(type) == 2 && H5Tget_order(type) == H5T_ORDER_LE && H5Tget_ebias(type) == 15 &&
         H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) >= 0 && sign == 15 &&
         exponent == 10 && exponent_bits == 5 && mantissa == 0 && mantissa_bits == 10;
}

// The enumeration {FALSE = 0, TRUE = 1} of bytes.
bool IsBool(hid_t type) {
  char first[8] = {};
  char second[8] = {};
  const int8_t zero = 0;
  const int8_t one = 1;
  return H5Tget_size(type) == 1 && H5Tget_nmembers(type) == 2 &&
         H5Tenum_nameof(type, &zero, first, sizeof(first)) >= 0 && std::strcmp(first, "FALSE") == 0 &&
         H5Tenum_nameof(type, &one, second, sizeof(second)) >= 0 && std::strcmp(second, "TRUE") == 0;
}

std::optional<DType> IntegerType(hid_t type) {
  const std::pair<hid_t, DType> known[] = {
      {H5T_STD_I64LE, DType::kInt64},  {H5T_STD_I32LE, DType::kInt32},  {H5T_STD_I16LE, DType::kInt16},
      {H5T_STD_I8LE, DType::kInt8},    {H5T_STD_U64LE, DType::kUInt64}, {H5T_STD_U32LE, DType::kUInt32},
      {H5T_STD_U16LE, DType::kUInt16}, {H5T_STD_U8LE, DType::kUInt8},
  };
  for (const auto& [other, dtype] : known) {
    if (IsEqual(type, other)) return dtype;
  }
  return std::nullopt;
}

// Declared here because TypeName and IsMember call each other: a complex number is a compound of floats.
bool IsMember(hid_t type, unsigned index, const char* name, size_t offset, DType dtype);

// The compound for the complex type `dtype`, as hdf5_file.cc creates it.
bool IsComplexType(hid_t type, DType dtype) {
  const auto size = static_cast<size_t>(SizeOf(dtype));
  const auto [real, imaginary] = ComplexFieldsOf(dtype);
  return H5Tget_size(type) == size && H5Tget_nmembers(type) == 2 && IsMember(type, 0, real, 0, PartOf(dtype)) &&
         IsMember(type, 1, imaginary, size / 2, PartOf(dtype));
}

std::string ComplexTypeName(hid_t type) {
  for (const DType dtype : {DType::kComplex32, DType::kComplex64, DType::kComplex128}) {
    if (IsComplexType(type, dtype)) return std::string(DTypeName(dtype));
  }
  return "";
}

// The DTypeName of `type`, "text", or "" for a type that is not in checkpoints. `named` is the attribute "dtype", which
// distinguishes the bytes of a float8 from uint8.
std::string TypeName(hid_t type, const std::string& named) {
  switch (H5Tget_class(type)) {
    case H5T_STRING:
      return H5Tis_variable_str(type) == 0 ? "text" : "";
    case H5T_FLOAT:
      if (IsEqual(type, H5T_IEEE_F64LE)) return "float64";
      if (IsEqual(type, H5T_IEEE_F32LE)) return "float32";
      if (IsBFloat16(type)) return "bfloat16";
      return IsFloat16(type) ? "float16" : "";
    case H5T_INTEGER: {
      const std::optional<DType> dtype = IntegerType(type);
      if (!dtype) return "";
      const absl::StatusOr<DType> other = ParseDType(named);
      const bool is_float8 = *dtype == DType::kUInt8 && other.ok() && IsFloatingPoint(*other) && SizeOf(*other) == 1;
      return is_float8 ? named : std::string(DTypeName(*dtype));
    }
    case H5T_ENUM:
      return IsBool(type) ? "bool" : "";
    case H5T_COMPOUND:
      return ComplexTypeName(type);
    default:
      return "";
  }
}

bool IsMember(hid_t type, unsigned index, const char* name, size_t offset, DType dtype) {
  char* const found = H5Tget_member_name(type, index);
  const bool is_named = found != nullptr && std::strcmp(found, name) == 0;
  if (found != nullptr) H5free_memory(found);
  const Hdf5Handle member(H5Tget_member_type(type, index), H5Tclose);
  return is_named && member.ok() && H5Tget_member_offset(type, index) == offset &&
         TypeName(member.get(), "") == DTypeName(dtype);
}

// "in another file, NAME", of the first of its files.
std::string ExternalProblem(hid_t creation) {
  char name[kMaxHdf5LeftOutText] = {};
  off_t offset = 0;
  hsize_t nbytes = 0;
  // One byte less, because the library does not end a longer name with a zero.
  if (H5Pget_external(creation, 0, sizeof(name) - 1, name, &offset, &nbytes) < 0) name[0] = '\0';
  return absl::StrCat(kHdf5InAnotherFile, name);
}

// Only a contiguous dataset has a single place in the file. For others the reason becomes Hdf5Dataset::layout.
std::string LayoutProblem(hid_t creation) {
  switch (H5Pget_layout(creation)) {
    case H5D_CONTIGUOUS:
      return H5Pget_external_count(creation) == 0 ? "" : ExternalProblem(creation);
    case H5D_VIRTUAL:
      return "virtual";
    case H5D_CHUNKED:
      return "chunked";
    default:
      return "compact";
  }
}

struct Link {
  std::string name;
  H5L_type_t type = H5L_TYPE_ERROR;
  haddr_t address = 0;    // of the object, for a hard link
  size_t value_size = 0;  // of the target, for any other
};

struct Links {
  std::vector<Link> found;
  int64_t hard_room = 0;    // room for this many more hard links
  int64_t other_room = 0;   // and this many others
  int64_t others_left = 0;  // other links that did not fit
};

// Called for each link of a group. Asking for names by index instead would take quadratic time.
herr_t AddLink(hid_t, const char* name, const LinkInfo* link, void* data) {
  auto& links = *static_cast<Links*>(data);
  if (std::strlen(name) > 3 * kMaxAttributeBytes) return -1;
  if (link->type == H5L_TYPE_HARD) {
    if (links.hard_room-- == 0) return -1;
    links.found.push_back({.name = name, .type = link->type, .address = link->u.address});
  } else if (links.other_room > 0) {
    --links.other_room;
    links.found.push_back({.name = name, .type = link->type, .value_size = link->u.val_size});
  } else {
    ++links.others_left;
  }
  return 0;
}

class Lister {
 public:
  absl::Status VisitRoot(hid_t root) {
    // The root's own address: a hard link back to it is then recognised as such.
    ObjectInfo info = {};
    if (H5Oget_info2(root, &info, H5O_INFO_BASIC) < 0) return Hdf5Error("find group", "/");
    paths_[info.addr] = "/";
    return VisitGroup(root, "", 0);
  }

  Hdf5Listing TakeListing() { return std::move(listing_); }

 private:
  absl::Status VisitGroup(hid_t group, const std::string& path, int depth) {
    if (depth > kMaxDepth) return absl::DataLossError(absl::StrCat(path, " is more than ", kMaxDepth, " groups deep"));
    Links links;
    links.hard_room = kMaxHdf5Objects - objects_;
    links.other_room = kMaxHdf5LeftOut - static_cast<int64_t>(listing_.left_out.size());
    if (IterateLinks(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, AddLink, &links) < 0) {
      if (links.hard_room < 0) return absl::DataLossError("there are too many objects");
      return Hdf5Error("read the names in", path);
    }
    for (const Link& link : links.found) {
      const std::string below = absl::StrCat(path, "/", link.name);
      if (link.type == H5L_TYPE_HARD) {
        FSDP_RETURN_IF_ERROR(VisitObject(group, link, below, depth));
      } else {
        LeaveOutLink(group, link, below);
      }
    }
    listing_.left_out_count += links.others_left;
    return absl::OkStatus();
  }

  absl::Status VisitObject(hid_t group, const Link& link, const std::string& path, int depth) {
    if (++objects_ > kMaxHdf5Objects) return absl::DataLossError("there are too many objects");
    // By address: a second hard link to an object, or a link back to a group above, is not followed.
    const auto [first, is_new] = paths_.try_emplace(link.address, path);
    if (!is_new) {
      LeaveOut(path, "hard link", first->second);
      return absl::OkStatus();
    }
    const Hdf5Handle object(H5Oopen(group, link.name.c_str(), H5P_DEFAULT), H5Oclose);
    if (!object.ok()) return Hdf5Error("open", path);
    switch (H5Iget_type(object.get())) {
      case H5I_GROUP:
        return VisitGroup(object.get(), path, depth + 1);
      case H5I_DATASET:
        return VisitDataset(object.get(), path);
      case H5I_DATATYPE:
        LeaveOut(path, "named datatype");
        return absl::OkStatus();
      default:
        LeaveOut(path, "object of an unknown kind");
        return absl::OkStatus();
    }
  }

  // Reads the target as text. If it cannot be read, the link is listed without a target.
  void LeaveOutLink(hid_t group, const Link& link, const std::string& path) {
    const bool is_soft = link.type == H5L_TYPE_SOFT;
    if (!is_soft && link.type != H5L_TYPE_EXTERNAL) return LeaveOut(path, "user-defined link");
    std::vector<char> value(std::min(link.value_size, kMaxAttributeBytes) + 1);
    const bool is_read = H5Lget_val(group, link.name.c_str(), value.data(), value.size() - 1, H5P_DEFAULT) >= 0;
    if (is_soft) return LeaveOut(path, "soft link", is_read ? value.data() : "");
    unsigned flags = 0;
    const char* file = "";
    const char* target = "";
    if (!is_read || H5Lunpack_elink_val(value.data(), value.size() - 1, &flags, &file, &target) < 0) file = target = "";
    LeaveOut(path, "external link", target, file);
  }

  void LeaveOut(const std::string& path, const std::string& kind, const std::string& target = "",
                const std::string& file = "") {
    if (++listing_.left_out_count > kMaxHdf5LeftOut) return;
    // The count continues past the limit, so that the caller can report how many more there are.
    const auto cut = [](const std::string& text) { return text.substr(0, kMaxHdf5LeftOutText); };
    listing_.left_out.push_back({cut(path), kind, cut(target), cut(file)});
  }

  absl::Status VisitDataset(hid_t dataset, const std::string& path) {
    const Hdf5Handle type(H5Dget_type(dataset), H5Tclose);
    const Hdf5Handle space(H5Dget_space(dataset), H5Sclose);
    const Hdf5Handle creation(H5Dget_create_plist(dataset), H5Pclose);
    if (!type.ok() || !space.ok() || !creation.ok()) return Hdf5Error("describe dataset", path);
    Hdf5Dataset& listed = listing_.datasets.emplace_back();
    listed.path = path;
    listed.fqn = TextAttribute(dataset, "fqn");
    listed.type = TypeName(type.get(), TextAttribute(dataset, "dtype"));
    const int rank = H5Sget_simple_extent_ndims(space.get());
    if (rank < 0 || rank > H5S_MAX_RANK) return Hdf5Error("read the shape of", path);
    hsize_t dims[H5S_MAX_RANK] = {};
    H5Sget_simple_extent_dims(space.get(), dims, nullptr);
    for (int i = 0; i < rank; ++i) listed.dims.push_back(static_cast<int64_t>(dims[i]));
    listed.layout = LayoutProblem(creation.get());
    const hssize_t points = H5Sget_simple_extent_npoints(space.get());
    if (points < 0) return Hdf5Error("count the elements of", path);
    // May overflow for a hostile shape: CheckHdf5Listing recomputes the size from checked numbers.
    const uint64_t nbytes = static_cast<uint64_t>(points) * H5Tget_size(type.get());
    listed.nbytes = static_cast<int64_t>(nbytes);
    // Only a contiguous dataset with elements has an offset to ask for.
    if (points == 0 || !listed.layout.empty()) return absl::OkStatus();
    const haddr_t offset = H5Dget_offset(dataset);
    if (offset == HADDR_UNDEF) {
      listed.layout = "not allocated";
    } else {
      listed.offset = static_cast<int64_t>(offset);
    }
    return absl::OkStatus();
  }

  Hdf5Listing listing_;
  // kMaxHdf5Objects bounds the number of paths; the process's memory limit bounds the lengths of hostile ones.
  std::map<haddr_t, std::string> paths_;  // of the visited objects, by address
  int64_t objects_ = 0;
};

}  // namespace

absl::StatusOr<Hdf5Listing> ListHdf5(const Hdf5LibraryCall&, int fd) {
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  if (!SetDescriptor(access.get(), fd)) return Hdf5Error("prepare to open", kName);
  const Hdf5Handle file(H5Fopen(kName, H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!file.ok()) return Hdf5Error("open", kName);
  const Hdf5Handle root(H5Gopen2(file.get(), "/", H5P_DEFAULT), H5Gclose);
  if (!root.ok()) return Hdf5Error("open group", "/");
  Lister lister;
  FSDP_RETURN_IF_ERROR(lister.VisitRoot(root.get()));
  return lister.TakeListing();
}

}  // namespace fsdp
