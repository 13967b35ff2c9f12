// SPDX-License-Identifier: Apache-2.0
//
// quickstart: trains, is killed, continues on other ranks, verifies, converts. See quickstart_run.h.
//
//   ./bazelw run //examples:quickstart
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/examples/quickstart_run.h"

ABSL_FLAG(std::string, output_dir, "", "directory for the files (default: a new one, which is printed)");

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// The absolute path of an empty directory: `wanted`, or a new one.
absl::StatusOr<std::string> EmptyDirectory(const std::string& wanted) {
  std::error_code error;
  if (wanted.empty()) {
    std::string path = fs::temp_directory_path(error) / "fsdp-quickstart-XXXXXX";
    if (!error && mkdtemp(path.data()) != nullptr) return path;
    return absl::UnavailableError(absl::StrFormat("%s: cannot be made; pass --output_dir", path));
  }
  FSDP_RETURN_IF_ERROR(
      Annotate(CheckOutput(wanted, {}, {.kind = OutputKind::kRoot}), absl::StrFormat("--output_dir=%s", wanted)));
  fs::create_directories(wanted, error);
  if (!error && !fs::is_empty(wanted, error) && !error) {
    return absl::AlreadyExistsError(absl::StrFormat("--output_dir=%s: is not empty", wanted));
  }
  if (error) return absl::UnavailableError(absl::StrFormat("--output_dir=%s: %s", wanted, error.message()));
  return fs::canonical(wanted).string();
}

absl::Status RunQuickstart() {
  FSDP_ASSIGN_OR_RETURN(const std::string output_dir, EmptyDirectory(absl::GetFlag(FLAGS_output_dir)));
  FSDP_ASSIGN_OR_RETURN(QuickstartRun run, QuickstartRun::Create(output_dir));
  return run.Run();
}

int Main(int argc, char** argv) {
  if (const std::optional<int> status = ParseFlags(argc, argv, "quickstart [--output_dir=DIR]")) return *status;
  const absl::Status status = RunQuickstart();
  if (status.ok()) return kExitDone;
  std::fflush(stdout);
  std::fprintf(stderr, "quickstart: %s\n", std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
