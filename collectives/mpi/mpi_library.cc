// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/mpi/mpi_library.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// A process has one MPI, and so one of these.
struct Process {
  std::mutex mutex;
  // All guarded by mutex.
  int pid = 0;  // the process that initialised MPI; 0: StartMpi was not called yet
  bool is_ours = false;
  int uses = 0;
  bool has_failed = false;
  void (*before_finalize)() = nullptr;
};

// Never destroyed: the end of the process still reads it.
Process& TheProcess() {
  static Process* const process = new Process;
  return *process;
}

constexpr char kLibrary[] = "libfsdp_mpi.so";

// Next to this program if Bazel built both; else the dynamic loader searches: LD_LIBRARY_PATH, the directory of the
// program (BUILD.bazel), the system's directories.
std::string LibraryPath() {
  const absl::StatusOr<std::string> built = FindRunfile(absl::StrCat("collectives/mpi/", kLibrary));
  return built.ok() ? *built : kLibrary;
}

const absl::StatusOr<const MpiFunctions*>& LoadedMpi() {
  static const auto* const loaded = new absl::StatusOr<const MpiFunctions*>(LoadMpiFrom(LibraryPath()));
  return *loaded;
}

const char* ThreadLevelName(int level) {
  switch (level) {
    case FSDP_MPI_SINGLE:
      return "MPI_THREAD_SINGLE";
    case FSDP_MPI_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case FSDP_MPI_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return "MPI_THREAD_MULTIPLE";
  }
}

void FinalizeAtExit() {
  Process& process = TheProcess();
  {
    const std::lock_guard<std::mutex> lock(process.mutex);
    // A forked child must not finalize its parent's MPI. After a failure, or with a group left, MPI_Finalize could
    // hang.
    if (process.pid != getpid() || process.uses > 0 || process.has_failed || Mpi().is_finalized()) return;
  }
  if (process.before_finalize != nullptr) process.before_finalize();
  Mpi().finalize();
}

// Initialises MPI, unless the program did.
void Initialise(Process& process) {
  if (Mpi().is_initialized() != 0) return;
  Mpi().initialize();
  process.is_ours = true;
  // MPICH reports the errors of tests and waits to these two, whatever the communicator of the message.
  Mpi().return_errors(Mpi().world());
  Mpi().return_errors(Mpi().self());
  atexit(FinalizeAtExit);
}

absl::Status CheckThreadLevel(const Process& process) {
  const int level = Mpi().thread_level();
  if (level >= FSDP_MPI_MULTIPLE) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("backend mpi: MPI's thread level is ", ThreadLevelName(level),
                   ", wanted MPI_THREAD_MULTIPLE, because collectives call MPI from threads of their own: ",
                   process.is_ours ? "this MPI was built without it"
                                   : "the program initialised MPI; let it ask MPI_Init_thread for MPI_THREAD_MULTIPLE, "
                                     "or leave the initialisation to InitProcessGroup"));
}

}  // namespace

// Its symbols are global, because an MPI loads plugins that use the symbols of its library.
absl::StatusOr<const MpiFunctions*> LoadMpiFrom(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return absl::FailedPreconditionError(absl::StrCat(
        "backend mpi: ", kLibrary, " cannot be loaded: ", why != nullptr ? why : path.c_str(),
        "; it joins this program to an installed MPI (Debian: libopenmpi-dev openmpi-bin, or libmpich-dev mpich): "
        "build again with MPI installed, or put the library that `mpicc -shared -fPIC` makes from "
        "collectives/mpi/mpi_functions.c next to the program or in LD_LIBRARY_PATH"));
  }
  const auto get = reinterpret_cast<GetMpiFunctions>(dlsym(library, FSDP_MPI_FUNCTIONS_SYMBOL));
  if (get == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("backend mpi: ", path, " has no ", FSDP_MPI_FUNCTIONS_SYMBOL, ": it is not ", kLibrary));
  }
  // Only the version may be read before it is compared: other members may be elsewhere in another version.
  const MpiFunctions* const functions = get();
  if (functions->version == FSDP_MPI_FUNCTIONS_VERSION) return functions;
  return absl::FailedPreconditionError(absl::StrCat("backend mpi: ", path, " is of version ", functions->version,
                                                    ", this program wants version ", FSDP_MPI_FUNCTIONS_VERSION,
                                                    ": make it again of this program's mpi_functions.c"));
}

const MpiFunctions& Mpi() { return **LoadedMpi(); }

absl::StatusOr<MpiPlace> StartMpi() {
  FSDP_RETURN_IF_ERROR(LoadedMpi().status());
  Process& process = TheProcess();
  const std::lock_guard<std::mutex> lock(process.mutex);
  // MPI does not survive a fork: its connections and threads belong to the parent.
  if (process.pid != 0 && process.pid != getpid()) {
    return absl::FailedPreconditionError(absl::StrCat("backend mpi: this process was forked from process ", process.pid,
                                                      ", which has initialised MPI: join the job before forking"));
  }
  if (Mpi().is_finalized() != 0) {
    return absl::FailedPreconditionError(
        "backend mpi: MPI is finalized in this process, and cannot be initialised again: call MPI_Finalize after the "
        "last group has ended");
  }
  Initialise(process);
  // Also if the program initialised MPI: the check for a fork applies to it too.
  process.pid = getpid();
  FSDP_RETURN_IF_ERROR(CheckThreadLevel(process));
  const MpiHandle world = Mpi().world();
  return MpiPlace{.rank = Mpi().rank_of(world), .size = Mpi().size_of(world)};
}

// MPICH writes a page that begins with the line "MPICH Version:   4.0.2"; Open MPI writes a list with commas.
std::string MpiVersion() {
  std::array<char, 256> text = {};
  Mpi().library_version(text.data(), text.size());
  std::string version(text.data());
  version = version.substr(0, version.find_first_of(",\n"));
  for (char& c : version) c = c == '\t' ? ' ' : c;
  return version;
}

std::string MpiReason(int code) {
  std::array<char, 512> text = {};
  Mpi().error_text(code, text.data(), text.size());
  return text.data();
}

absl::Status MpiStatus(int code, const char* function) {
  if (code == 0) return absl::OkStatus();
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
  return TheProcess().pid == getpid() && Mpi().is_finalized() == 0;
}

}  // namespace fsdp
