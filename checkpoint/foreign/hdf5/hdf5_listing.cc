// SPDX-License-Identifier: Apache-2.0
//
// The half of hdf5_listing.h that calls the library; hdf5_listing_json.cc is the other. It runs in the confined child,
// on files that may be crafted to attack it, so it uses as little of the library as it can: no values but scalar
// attributes; the targets of soft and external links as text, which is never followed; each object once (a hard link
// can make a group its own descendant); bounded depth, names and counts.
#include "fsdp/checkpoint/foreign/hdf5/hdf5_listing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_type_name.h"
#include "fsdp/checkpoint/hdf5/hdf5_descriptor.h"
#include "fsdp/checkpoint/hdf5/hdf5_library.h"

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

bool IsInModel(const std::string& path) { return path.rfind("/model/", 0) == 0; }

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

template <typename T>
std::optional<AttributeValue> ReadScalar(hid_t attribute, hid_t memory) {
  T value = {};
  if (H5Aread(attribute, memory, &value) < 0) return std::nullopt;
  return AttributeValue(value);
}

// A scalar that RunMetadata can hold, else nullopt.
std::optional<AttributeValue> ScalarAttribute(hid_t object, const char* name) {
  const Hdf5Handle attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose);
  const Hdf5Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const Hdf5Handle space(H5Aget_space(attribute.get()), H5Sclose);
  if (!attribute.ok() || !type.ok() || H5Sget_simple_extent_npoints(space.get()) != 1) return std::nullopt;
  switch (H5Tget_class(type.get())) {
    case H5T_STRING:
      if (H5Tis_variable_str(type.get()) <= 0) return std::nullopt;
      return AttributeValue(TextAttribute(object, name));
    case H5T_INTEGER:
      // An unsigned number of 64 bits may be too large for an int64_t.
      if (H5Tget_size(type.get()) == 8 && H5Tget_sign(type.get()) == H5T_SGN_NONE) return std::nullopt;
      return ReadScalar<int64_t>(attribute.get(), H5T_NATIVE_INT64);
    case H5T_FLOAT: {
      // NaN and infinity are no values of RunMetadata.
      const auto value = ReadScalar<double>(attribute.get(), H5T_NATIVE_DOUBLE);
      return value && std::isfinite(std::get<double>(*value)) ? value : std::nullopt;
    }
    case H5T_ENUM: {
      int8_t value = 0;
      if (!IsHdf5Bool(type.get()) || H5Aread(attribute.get(), type.get(), &value) < 0) return std::nullopt;
      return AttributeValue(value != 0);
    }
    default:
      return std::nullopt;
  }
}

struct Attributes {
  RunMetadata* found = nullptr;
  size_t nbytes = 0;
};

// Called for each attribute of the root group; 1 ends the walk.
herr_t AddAttribute(hid_t root, const char* name, const H5A_info_t*, void* data) {
  auto& attributes = *static_cast<Attributes*>(data);
  const std::optional<AttributeValue> value = ScalarAttribute(root, name);
  if (!value) return 0;
  const auto* const text = std::get_if<std::string>(&*value);
  attributes.nbytes += std::strlen(name) + (text != nullptr ? text->size() : sizeof(int64_t));
  const bool is_full = std::ssize(*attributes.found) == kMaxHdf5Attributes;
  if (is_full || attributes.nbytes > kMaxHdf5AttributeBytes) return 1;
  (*attributes.found)[name] = *value;
  return 0;
}

class Lister {
 public:
  absl::Status VisitRoot(hid_t root) {
    // The root's own address: a hard link back to it is then recognised as such.
    ObjectInfo info = {};
    if (H5Oget_info2(root, &info, H5O_INFO_BASIC) < 0) return Hdf5Error("find group", "/");
    paths_[info.addr] = "/";
    hsize_t next = 0;
    Attributes attributes = {&listing_.attributes};
    if (H5Aiterate2(root, H5_INDEX_NAME, H5_ITER_INC, &next, AddAttribute, &attributes) < 0) {
      return Hdf5Error("read the attributes of", "/");
    }
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
      const bool is_tied = datasets_.count(link.address) != 0 && IsInModel(path) && IsInModel(first->second);
      if (is_tied) {
        listing_.aliases.push_back({path, first->second});
      } else {
        LeaveOut(path, "hard link", first->second);
      }
      return absl::OkStatus();
    }
    const Hdf5Handle object(H5Oopen(group, link.name.c_str(), H5P_DEFAULT), H5Oclose);
    if (!object.ok()) return Hdf5Error("open", path);
    switch (H5Iget_type(object.get())) {
      case H5I_GROUP:
        ListName(object.get(), path);
        return VisitGroup(object.get(), path, depth + 1);
      case H5I_DATASET:
        datasets_.insert(link.address);
        return VisitDataset(object.get(), path);
      case H5I_DATATYPE:
        LeaveOut(path, "named datatype");
        return absl::OkStatus();
      default:
        LeaveOut(path, "object of an unknown kind");
        return absl::OkStatus();
    }
  }

  void ListName(hid_t group, const std::string& path) {
    if (listing_.groups.size() == kMaxHdf5NamedGroups) return;
    const std::string name = TextAttribute(group, "name");
    if (!name.empty() && name.size() <= kMaxHdf5LeftOutText) listing_.groups.push_back({path, name});
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
    listed.type = Hdf5TypeName(type.get(), TextAttribute(dataset, "dtype"));
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
  std::set<haddr_t> datasets_;            // the datasets among them
  int64_t objects_ = 0;
};

}  // namespace

absl::StatusOr<Hdf5Listing> ListHdf5(const Hdf5LibraryCall&, int fd, const std::optional<Interval>& part) {
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  if (!SetDescriptor(access.get(), fd, part)) return Hdf5Error("prepare to open", kName);
  const Hdf5Handle file(H5Fopen(kName, H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!file.ok()) return Hdf5Error("open", kName);
  const Hdf5Handle root(H5Gopen2(file.get(), "/", H5P_DEFAULT), H5Gclose);
  if (!root.ok()) return Hdf5Error("open group", "/");
  Lister lister;
  FSDP_RETURN_IF_ERROR(lister.VisitRoot(root.get()));
  return lister.TakeListing();
}

}  // namespace fsdp
