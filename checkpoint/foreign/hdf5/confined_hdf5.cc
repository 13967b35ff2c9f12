// SPDX-License-Identifier: Apache-2.0
//
//   parent                                   child
//   open the file
//   lock the library, fork  ---------------> /dev/null and two descriptors, Confine
//   read the answer, up to the timeout <---- ListHdf5, one letter and a JSON text or an error
//   reap or kill the child
//   decode and check the answer
//
// Uses a fork and not a separate program, because a library cannot rely on the path of a helper binary. The price is
// that the child has this process's memory, which it can read but send nowhere: its only way out is the answer.
#include "fsdp/checkpoint/foreign/hdf5/confined_hdf5.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/checkpoint/foreign/hdf5/confinement.h"
#include "fsdp/checkpoint/hdf5/hdf5_library.h"

namespace fsdp {
namespace {

// Descriptors of the child: "nothing" as standard input, output and error (0 to 2), its answer, the file.
constexpr int kAnswerFd = 3;
constexpr int kFileFd = 4;
constexpr int kOpenFiles = 6;
// The file and the answer are first duplicated to descriptors from here on: either of them may be 3 or 4 in the parent,
// and dup2 would overwrite it. Not higher: the limit of descriptors may be low.
constexpr int kParkedFd = kFileFd + 1;

// First byte of an answer.
constexpr char kListing = 'L';
constexpr char kError = 'E';
constexpr char kUnconfined = 'U';  // the file was not read

bool WriteAll(int fd, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t written = write(fd, bytes, size);
    if (written < 0 && errno != EINTR) return false;
    if (written <= 0) continue;
    bytes += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

// A descriptor that reads as empty and discards or refuses writes: /dev/null or, without a /dev, a pipe whose other end
// is closed. -1 for an error.
int OpenNothing() {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) return null;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  close(ends[1]);
  return ends[0];
}

// Closes `first` and every higher descriptor.
bool CloseFrom(int first) {
  if (close_range(first, ~0U, 0) == 0) return true;
  if (errno != ENOSYS) return false;
  // A kernel before 5.9. The limit may have been lowered below a descriptor that is open, but only this program itself
  // could have done that.
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  constexpr rlim_t kMost = 1 << 20;  // the kernels' maximum unless an administrator has raised it
  for (rlim_t fd = first; fd < std::min(limit.rlim_cur, kMost); ++fd) close(static_cast<int>(fd));
  return true;
}

// Runs in the child: confines itself, lists the file, writes its answer and exits. `call` is a copy of the parent's,
// whose lock the forking thread held, so the library is in a consistent state here. _exit, not exit: buffers and
// destructors belong to the parent.
[[noreturn]] void Answer(const Hdf5LibraryCall& call, int file, int answer, const ConfinedHdf5Options& options) {
  const int nothing = OpenNothing();
  const int parked_file = fcntl(file, F_DUPFD, kParkedFd);
  const int parked_answer = fcntl(answer, F_DUPFD, kParkedFd);
  bool ready = nothing >= 0 && parked_file >= 0 && parked_answer >= 0;
  for (const int fd : {0, 1, 2}) ready = ready && dup2(nothing, fd) == fd;
  ready = ready && dup2(parked_answer, kAnswerFd) == kAnswerFd && dup2(parked_file, kFileFd) == kFileFd;
  // Until then kAnswerFd may be any file of the parent.
  const int out = ready ? kAnswerFd : parked_answer >= 0 ? parked_answer : answer;
  ready = ready && CloseFrom(kFileFd + 1) &&
          Confine({.memory_bytes = options.memory_bytes, .cpu_seconds = options.cpu_seconds, .open_files = kOpenFiles});
  if (!ready) {
    const std::string text = absl::StrCat(std::string(1, kUnconfined), "cannot confine a process: ", strerror(errno));
    _exit(WriteAll(out, text.data(), text.size()) ? 0 : 1);
  }
  const absl::StatusOr<Hdf5Listing> listing = ListHdf5(call, kFileFd, options.part);
  const std::string text = listing.ok() ? absl::StrCat(std::string(1, kListing), EncodeHdf5Listing(*listing))
                                        : absl::StrCat(std::string(1, kError), listing.status().message());
  _exit(WriteAll(kAnswerFd, text.data(), text.size()) ? 0 : 1);
}

// Reads from `fd` until its end. kDataLoss when that takes longer than the timeout or the answer exceeds output_bytes.
absl::StatusOr<std::string> ReadAnswer(int fd, const ConfinedHdf5Options& options) {
  const absl::Time deadline = SteadyNow() + options.timeout;
  std::string answer;
  char buffer[1 << 16];
  for (;;) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - SteadyNow());
    if (left <= 0) {
      return absl::DataLossError(absl::StrCat("parsing it took longer than ", absl::FormatDuration(options.timeout)));
    }
    pollfd ready = {fd, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, 1000))) <= 0) continue;
    const ssize_t count = read(fd, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return answer;
    answer.append(buffer, static_cast<size_t>(count));
    if (static_cast<int64_t>(answer.size()) > options.output_bytes) {
      return absl::DataLossError(absl::StrCat("its names take more than ", options.output_bytes, " bytes"));
    }
  }
}

// Reaps the child. Kills it first unless `is_done`, which means that its answer is complete. Fails when a child that
// was not killed here has crashed, exceeded its processor time, or exited with a failure.
absl::Status End(pid_t child, bool is_done) {
  if (!is_done) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return absl::ErrnoToStatus(errno, "waitpid");
  }
  if (!is_done || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return absl::OkStatus();
  if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL)) {
    return absl::DataLossError("parsing it took too much processor time");
  }
  return absl::DataLossError(WIFSIGNALED(status)
                                 ? absl::StrCat("the HDF5 library died of it (", strsignal(WTERMSIG(status)), ")")
                                 : "parsing it ended without an answer");
}

absl::StatusOr<std::string> AskChild(int file, const ConfinedHdf5Options& options) {
  int answer[2];
  if (pipe2(answer, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const absl::Cleanup close_reader = [&] { close(answer[0]); };
  pid_t child = -1;
  {
    const Hdf5LibraryCall call;  // no other thread is inside the library when it is copied
    child = fork();
    if (child == 0) Answer(call, file, answer[1], options);
  }
  // The parent's copy of the write end must be closed, or the read below would never see the end of the answer.
  close(answer[1]);
  if (child < 0) return absl::ErrnoToStatus(errno, "fork");
  absl::StatusOr<std::string> text = ReadAnswer(answer[0], options);
  FSDP_RETURN_IF_ERROR(End(child, text.ok()));
  return text;
}

absl::StatusOr<Hdf5Listing> List(int file, const ConfinedHdf5Options& options) {
  struct stat info = {};
  if (fstat(file, &info) != 0) return absl::ErrnoToStatus(errno, "fstat");
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("it is not a regular file");
  FSDP_ASSIGN_OR_RETURN(const std::string text, AskChild(file, options));
  const std::string_view answer(text);
  if (answer.empty()) return absl::DataLossError("parsing it ended without an answer");
  if (answer.front() == kUnconfined) return absl::UnavailableError(Printable(answer.substr(1)));
  if (answer.front() != kListing) return absl::DataLossError(Printable(answer.substr(1)));
  FSDP_ASSIGN_OR_RETURN(Hdf5Listing listing, DecodeHdf5Listing(answer.substr(1)));
  FSDP_RETURN_IF_ERROR(CheckHdf5Listing(listing.datasets, options.part ? options.part->size() : info.st_size));
  return listing;
}

}  // namespace

absl::StatusOr<Hdf5Listing> ListUntrustedHdf5(const std::string& path, const ConfinedHdf5Options& options) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return absl::ErrnoToStatus(errno, path);
  const absl::Cleanup close_file = [&] { close(file); };
  absl::StatusOr<Hdf5Listing> listing = List(file, options);
  if (listing.ok()) return listing;
  return Annotate(listing.status(), path);
}

}  // namespace fsdp
