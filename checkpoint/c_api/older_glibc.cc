// SPDX-License-Identifier: Apache-2.0
//
// Lets libfsdp_checkpoint.so, which is linked on a new system, run with older C libraries, from glibc 2.18 on. The
// linker takes the newest version of a function on this system, which an older system lacks. The definitions here take
// precedence over the C library's, only in this library: its version script hides them. Each calls an older version of
// the same function, or the kernel. Functions of libdl.so.2 and libpthread.so.0, which glibc 2.34 moved to libc.so.6,
// are again linked from these two: older_libdl.c and older_libpthread.c replace them in the link. The linker does not
// report a missing definition: symbols_test names it, and the tag of the wheel is derived from the versions that the
// library needs.
#if defined(__x86_64__)

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>

extern "C" {

// glibc 2.30. Without it the wait uses the system's clock, and becomes longer or shorter if that is set meanwhile.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  static auto* const real =
      reinterpret_cast<decltype(&pthread_cond_clockwait)>(dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (real != nullptr) return real(condition, mutex, clock, until);
  constexpr int64_t kSecond = 1000000000;
  timespec from, now;
  if (clock_gettime(clock, &from) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0) return EINVAL;
  int64_t nanoseconds = now.tv_nsec + until->tv_nsec - from.tv_nsec;
  int64_t seconds = now.tv_sec + until->tv_sec - from.tv_sec;
  for (; nanoseconds < 0; nanoseconds += kSecond) --seconds;
  for (; nanoseconds >= kSecond; nanoseconds -= kSecond) ++seconds;
  const timespec at = {seconds < 0 ? 0 : seconds, nanoseconds};
  return pthread_cond_timedwait(condition, mutex, &at);
}

// The same numbers: the newer versions only differ in not setting errno.
double older_pow(double, double);
float older_powf(float, float);
double older_hypot(double, double);
double older_log2(double);
__asm__(".symver older_pow,pow@GLIBC_2.2.5");
__asm__(".symver older_powf,powf@GLIBC_2.2.5");
__asm__(".symver older_hypot,hypot@GLIBC_2.2.5");
__asm__(".symver older_log2,log2@GLIBC_2.2.5");
double pow(double x, double y) noexcept { return older_pow(x, y); }
float powf(float x, float y) noexcept { return older_powf(x, y); }
double hypot(double x, double y) noexcept { return older_hypot(x, y); }
double log2(double x) noexcept { return older_log2(x); }

// glibc 2.33; inline functions before. The kernel's struct is the C library's on this processor.
int stat(const char* path, struct stat* of) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, of, 0));
}
int lstat(const char* path, struct stat* of) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, of, AT_SYMLINK_NOFOLLOW));
}
int fstat(int file, struct stat* of) noexcept { return static_cast<int>(syscall(SYS_fstat, file, of)); }
int fstat64(int file, struct stat64* of) noexcept { return static_cast<int>(syscall(SYS_fstat, file, of)); }

// glibc 2.26 to 2.34. All callers handle ENOSYS, since kernels may lack these too.
ssize_t preadv2(int file, const iovec* parts, int count, off_t offset, int flags) {
  return syscall(SYS_preadv2, file, parts, count, offset, 0, flags);
}
int memfd_create(const char* name, unsigned int flags) noexcept {
  return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}
int renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned int flags) noexcept {
  return static_cast<int>(syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
}
int statx(int directory, const char* path, int flags, unsigned int mask, struct statx* of) noexcept {
  return static_cast<int>(syscall(SYS_statx, directory, path, flags, mask, of));
}
int close_range(unsigned int first, unsigned int last, int flags) noexcept {
  return static_cast<int>(syscall(SYS_close_range, first, last, flags));
}

// glibc 2.25 and 2.36, for std::random_device.
int getentropy(void* to, size_t size) {
  auto* at = static_cast<unsigned char*>(to);
  while (size > 0) {
    const ssize_t got = syscall(SYS_getrandom, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return 0;
}
uint32_t arc4random() noexcept {
  uint32_t value;
  if (getentropy(&value, sizeof(value)) != 0) std::abort();  // as in the C library
  return value;
}

// glibc 2.32: tells std::shared_ptr to count without atomic instructions, which a library must never do.
char __libc_single_threaded = 0;

}  // extern "C"

#endif  // __x86_64__
