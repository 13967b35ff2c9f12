// SPDX-License-Identifier: Apache-2.0
//
// Two layers. Resource limits bound the process's consumption: memory, processor time, descriptors, the size of files.
// A seccomp filter (a classic BPF program that the kernel runs before each system call, see seccomp(2)) bounds its
// actions: the list below contains the calls of HDF5, the C library and the sanitizers while they read a file, and no
// socket, exec, unlink or second process. The filter first tests the architecture, since a system call's number means
// another call on another architecture.
#include "fsdp/checkpoint/foreign/hdf5/confinement.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <initializer_list>

namespace fsdp {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;  // no filter
#endif

// Allowed whatever their arguments. The address sanitizer calls sigaltstack when a process ends.
constexpr uint32_t kAllowed[] = {
    __NR_read,        __NR_pread64, __NR_write,       __NR_lseek,         __NR_fstat,        __NR_close,
    __NR_mmap,        __NR_munmap,  __NR_mremap,      __NR_mprotect,      __NR_madvise,      __NR_brk,
    __NR_futex,       __NR_exit,    __NR_exit_group,  __NR_rt_sigreturn,  __NR_rt_sigaction, __NR_rt_sigprocmask,
    __NR_getpid,      __NR_gettid,  __NR_getrusage,   __NR_clock_gettime, __NR_gettimeofday, __NR_fcntl,
    __NR_sched_yield, __NR_getuid,  __NR_uname,       __NR_tgkill,        __NR_getrandom,    __NR_newfstatat,
    __NR_statx,       __NR_flock,   __NR_sigaltstack,
};

// openat is allowed without any of these flags; RLIMIT_NOFILE bounds how many files can be open.
constexpr uint32_t kWriteFlags = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND;

// Offsets in seccomp_data. BPF loads 32 bits: the low halves of the 64-bit arguments on a little-endian machine.
constexpr uint32_t kNumber = offsetof(seccomp_data, nr);
constexpr uint32_t kArch = offsetof(seccomp_data, arch);
constexpr uint32_t kOpenFlags = offsetof(seccomp_data, args) + 2 * sizeof(uint64_t);

// Installs the filter; true even if seccomp is not available.
bool FilterSystemCalls() {
  if (kArchitecture == 0) return true;
  constexpr size_t kCount = sizeof(kAllowed) / sizeof(kAllowed[0]);
  sock_filter program[kCount * 2 + 10];
  size_t size = 0;
  const auto add = [&](sock_filter instruction) { program[size++] = instruction; };
  const sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_filter deny = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  // A foreign architecture kills the process: the numbers below would allow the wrong calls.
  add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kArch));
  add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
  add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber));
  for (const uint32_t number : kAllowed) {
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    add(allow);
  }
  add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 1, 0));
  add(deny);
  add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kOpenFlags));
  add(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kWriteFlags, 0, 1));
  add(deny);
  add(allow);
  const sock_fprog filter = {static_cast<uint16_t>(size), program};
  // A kernel without seccomp, or a container whose own filter refuses another one, leaves only the limits.
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0 || errno == EINVAL || errno == ENOSYS ||
         errno == EPERM;
}

bool Limit(int resource, rlim_t value) {
  const rlimit limit = {value, value};
  return setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0;
}

// The address space of this process if /proc is not mounted: the lowest limit under which one more page can be mapped.
int64_t ProbedAddressSpaceBytes() {
  rlimit old;
  if (getrlimit(RLIMIT_AS, &old) != 0) return 0;
  const auto page = static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  rlim_t below = 0;
  rlim_t enough = std::min<rlim_t>(rlim_t{1} << 47, old.rlim_max);
  while (enough - below > page) {
    const rlimit tried = {below + (enough - below) / 2, old.rlim_max};
    if (setrlimit(RLIMIT_AS, &tried) != 0) break;
    void* mapped = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped != MAP_FAILED) munmap(mapped, page);
    (mapped != MAP_FAILED ? enough : below) = tried.rlim_cur;
  }
  setrlimit(RLIMIT_AS, &old);
  return static_cast<int64_t>(enough);
}

// The address space of this process, in bytes. Parsed by hand: streams and strings would allocate.
int64_t AddressSpaceBytes() {
  const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ProbedAddressSpaceBytes();
  char text[64] = {};
  const ssize_t length = read(fd, text, sizeof(text) - 1);
  close(fd);
  int64_t pages = 0;
  for (const char* digit = text; length > 0 && *digit >= '0' && *digit <= '9'; ++digit) {
    pages = pages * 10 + (*digit - '0');
  }
  return pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

bool Confine(const Confinement& confinement) {
  // The parent's handlers must not run here: they may touch locks and threads that the child does not have.
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGINT, SIGXCPU, SIGPIPE}) {
    signal(number, SIG_DFL);
  }
  const int64_t memory = AddressSpaceBytes() + confinement.memory_bytes;
  return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         Limit(RLIMIT_CORE, 0) && Limit(RLIMIT_FSIZE, 0) && Limit(RLIMIT_AS, memory) &&
         Limit(RLIMIT_CPU, confinement.cpu_seconds) && Limit(RLIMIT_NOFILE, confinement.open_files) &&
         FilterSystemCalls();
}

}  // namespace fsdp
