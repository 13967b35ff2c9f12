// SPDX-License-Identifier: Apache-2.0
//
// A driver of HDF5's virtual file layer (H5FDdevelop.h in newer releases). It answers `query` like the library's own
// drivers for files, since the layout of a file depends on it.
#include "fsdp/checkpoint/hdf5/hdf5_descriptor.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h>
#endif

namespace fsdp {
namespace {

// The driver's data, which H5Pset_driver copies into an access list.
struct Descriptor {
  int fd;
  int64_t begin;
  int64_t nbytes;  // -1: to the end
};

struct DescriptorFile {
  H5FD_t base;  // first: the library's pointer to a file points to this
  int fd;
  haddr_t begin;  // of the bytes that are the file
  bool is_part;
  haddr_t end_of_addresses;
  haddr_t end_of_file;
  dev_t device;
  ino_t inode;
};

constexpr haddr_t kLastAddress = INT64_MAX;

DescriptorFile& Of(H5FD_t* file) { return *reinterpret_cast<DescriptorFile*>(file); }
const DescriptorFile& Of(const H5FD_t* file) { return *reinterpret_cast<const DescriptorFile*>(file); }

H5FD_t* Open(const char*, unsigned flags, hid_t access, haddr_t) {
  const auto* descriptor = static_cast<const Descriptor*>(H5Pget_driver_info(access));
  struct stat info;
  if (descriptor == nullptr || fstat(descriptor->fd, &info) != 0) return nullptr;
  const auto begin = static_cast<haddr_t>(descriptor->begin);
  if (descriptor->nbytes >= 0) {
    if ((flags & (H5F_ACC_TRUNC | H5F_ACC_RDWR)) != 0) return nullptr;
    const auto nbytes = static_cast<haddr_t>(descriptor->nbytes);
    return &(new DescriptorFile{{}, descriptor->fd, begin, true, 0, nbytes, info.st_dev, info.st_ino})->base;
  }
  // The name is ignored. The descriptor stays the caller's: Close deletes only this object.
  if ((flags & H5F_ACC_TRUNC) != 0 && ftruncate(descriptor->fd, 0) != 0) return nullptr;
  const haddr_t size = (flags & H5F_ACC_TRUNC) != 0 ? 0 : info.st_size;
  return &(new DescriptorFile{{}, descriptor->fd, 0, false, 0, size, info.st_dev, info.st_ino})->base;
}

herr_t Close(H5FD_t* file) {
  delete &Of(file);
  return 0;
}

// The library calls this to find out whether a file is open already.
int Compare(const H5FD_t* a, const H5FD_t* b) {
  if (Of(a).device != Of(b).device) return Of(a).device < Of(b).device ? -1 : 1;
  if (Of(a).inode != Of(b).inode) return Of(a).inode < Of(b).inode ? -1 : 1;
  return 0;
}

herr_t Query(const H5FD_t*, unsigned long* flags) {  // NOLINT(runtime/int): HDF5's own type
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t EndOfAddresses(const H5FD_t* file, H5FD_mem_t) { return Of(file).end_of_addresses; }
haddr_t EndOfFile(const H5FD_t* file, H5FD_mem_t) { return Of(file).end_of_file; }

herr_t SetEndOfAddresses(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  Of(file).end_of_addresses = address;
  return 0;
}

herr_t GetHandle(H5FD_t* file, hid_t, void** handle) {
  *handle = &Of(file).fd;
  return 0;
}

bool IsInside(const DescriptorFile& file, haddr_t address, size_t size) {
  // In this order the subtraction and the sum cannot wrap, with any address from a damaged file.
  return address <= kLastAddress && size <= kLastAddress - address && address + size <= file.end_of_addresses;
}

// Puts the error of a system call below the library's own messages, where Hdf5Error finds it.
herr_t Failed(const char* call) {
  const int error = errno;
  H5Epush2(H5E_DEFAULT, __FILE__, __func__, __LINE__, H5E_ERR_CLS, H5E_IO, H5E_READERROR, "cannot %s: %s (errno %d)",
           call, std::strerror(error), error);
  return -1;
}

herr_t Read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* out) {
  if (!IsInside(Of(file), address, size)) return -1;
  auto* to = static_cast<char*>(out);
  if (Of(file).is_part) {
    // The bytes after the part in its archive are beyond the end of the file.
    const haddr_t left = address < Of(file).end_of_file ? Of(file).end_of_file - address : 0;
    if (size > left) {
      std::memset(to + left, 0, size - left);
      size = left;
    }
    address += Of(file).begin;
  }
  while (size > 0) {
    const ssize_t n = pread(Of(file).fd, to, size, static_cast<off_t>(address));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("read");
    if (n == 0) {  // beyond the end of the file: zeros, as in the library's own drivers
      std::memset(to, 0, size);
      return 0;
    }
    to += n;
    address += n;
    size -= n;
  }
  return 0;
}

herr_t Write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, const void* bytes) {
  if (!IsInside(Of(file), address, size)) return -1;
  const auto* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t n = pwrite(Of(file).fd, from, size, static_cast<off_t>(address));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed("write");
    from += n;
    address += n;
    size -= n;
  }
  // `address` is now the end of the written bytes.
  Of(file).end_of_file = std::max(Of(file).end_of_file, address);
  return 0;
}

// Makes the file as long as the space that the library has allocated in it.
herr_t Truncate(H5FD_t* file, hid_t, hbool_t) {
  if (Of(file).end_of_addresses == Of(file).end_of_file) return 0;
  if (ftruncate(Of(file).fd, static_cast<off_t>(Of(file).end_of_addresses)) != 0) return Failed("lengthen");
  Of(file).end_of_file = Of(file).end_of_addresses;
  return 0;
}

// No locks are taken: the caller holds the only descriptor of the file.
herr_t Lock(H5FD_t*, hbool_t) { return 0; }
herr_t Unlock(H5FD_t*) { return 0; }

// Assigned by name, since releases of HDF5 differ in the other members of the class.
H5FD_class_t DriverClass() {
  H5FD_class_t made = {};
#ifdef H5FD_CLASS_VERSION
  made.version = H5FD_CLASS_VERSION;
  made.value = static_cast<H5FD_class_value_t>(300);  // 256 to 511 are for private drivers
#endif
  made.name = "fsdp_descriptor";
  made.maxaddr = kLastAddress;
  made.fc_degree = H5F_CLOSE_WEAK;
  made.fapl_size = sizeof(Descriptor);
  made.open = Open;
  made.close = Close;
  made.cmp = Compare;
  made.query = Query;
  made.get_eoa = EndOfAddresses;
  made.set_eoa = SetEndOfAddresses;
  made.get_eof = EndOfFile;
  made.get_handle = GetHandle;
  made.read = Read;
  made.write = Write;
  made.truncate = Truncate;
  made.lock = Lock;
  made.unlock = Unlock;
  const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(map), std::end(map), made.fl_map);
  return made;
}

}  // namespace

bool SetDescriptor(hid_t access, int fd, const std::optional<Interval>& part) {
  static const H5FD_class_t driver_class = DriverClass();
  static hid_t driver = -1;
  // A program that calls H5close also unregisters the driver.
  if (driver < 0 || H5Iget_type(driver) != H5I_VFL) driver = H5FDregister(&driver_class);
  const Descriptor descriptor = {fd, part ? part->begin : 0, part ? part->size() : -1};
  return driver >= 0 && H5Pset_driver(access, driver, &descriptor) >= 0;
}

}  // namespace fsdp
