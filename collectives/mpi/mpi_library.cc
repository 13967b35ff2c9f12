// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/mpi/mpi_library.h"

#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>

#include <mutex>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// MPI is one for the process, and so is this.
struct Process {
  std::mutex mutex;
  // All guarded by mutex.
  int pid = 0;  // of the process whose MPI it is; 0: nobody has asked yet
  bool is_ours = false;
  int uses = 0;
  bool has_failed = false;
  void (*before_finalize)() = nullptr;
};

// Never destroyed: the end of the process reads it.
Process& TheProcess() {
  static Process* const process = new Process;
  return *process;
}

bool IsFinalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

const char* ThreadLevelName(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return "MPI_THREAD_MULTIPLE";
  }
}

void FinalizeAtExit() {
  Process& process = TheProcess();
  {
    const std::lock_guard<std::mutex> lock(process.mutex);
    if (process.pid != getpid() || process.uses > 0 || process.has_failed || IsFinalized()) return;
  }
  if (process.before_finalize != nullptr) process.before_finalize();
  MPI_Finalize();
}

// MPI initialised, by the program or here.
void Initialise(Process& process) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) return;
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  process.is_ours = true;
  // MPICH reports the errors of tests and waits to these two, whatever the communicator of the message.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  atexit(FinalizeAtExit);
}

absl::Status CheckThreadLevel(const Process& process) {
  int level = 0;
  MPI_Query_thread(&level);
  if (level >= MPI_THREAD_MULTIPLE) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("backend mpi: MPI's thread level is ", ThreadLevelName(level),
                   ", wanted MPI_THREAD_MULTIPLE, because collectives call MPI from threads of their own: ",
                   process.is_ours ? "this MPI was built without it"
                                   : "the program initialised MPI; let it ask MPI_Init_thread for MPI_THREAD_MULTIPLE, "
                                     "or leave the initialisation to InitProcessGroup"));
}

}  // namespace

absl::StatusOr<MpiPlace> StartMpi() {
  Process& process = TheProcess();
  const std::lock_guard<std::mutex> lock(process.mutex);
  if (process.pid != 0 && process.pid != getpid()) {
    return absl::FailedPreconditionError(absl::StrCat("backend mpi: this process was forked from process ", process.pid,
                                                      ", which has initialised MPI: join the job before forking"));
  }
  if (IsFinalized()) {
    return absl::FailedPreconditionError(
        "backend mpi: MPI is finalized in this process, and cannot be initialised again: call MPI_Finalize after the "
        "last group has ended");
  }
  Initialise(process);
  process.pid = getpid();
  FSDP_RETURN_IF_ERROR(CheckThreadLevel(process));
  MpiPlace place;
  MPI_Comm_rank(MPI_COMM_WORLD, &place.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &place.size);
  return place;
}

// MPICH writes a page, of which the first line is "MPICH Version:	4.0.2"; Open MPI a list with commas.
std::string MpiVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text);
  version = version.substr(0, version.find_first_of(",\n"));
  for (char& c : version) c = c == '\t' ? ' ' : c;
  return version;
}

std::string MpiReason(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return absl::StrCat("MPI error ", code);
  return text;
}

absl::Status MpiStatus(int code, const char* function) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(function, ": ", MpiReason(code)));
}

MpiUse::MpiUse() {
  const std::lock_guard<std::mutex> lock(TheProcess().mutex);
  ++TheProcess().uses;
}

MpiUse::~MpiUse() {
  const std::lock_guard<std::mutex> lock(TheProcess().mutex);
  --TheProcess().uses;
}

void MpiUse::Fail() {
  const std::lock_guard<std::mutex> lock(TheProcess().mutex);
  TheProcess().has_failed = true;
}

void CallBeforeFinalize(void (*function)()) {
  const std::lock_guard<std::mutex> lock(TheProcess().mutex);
  TheProcess().before_finalize = function;
}

bool CanCallMpi() {
  const std::lock_guard<std::mutex> lock(TheProcess().mutex);
  return TheProcess().pid == getpid() && !IsFinalized();
}

}  // namespace fsdp
