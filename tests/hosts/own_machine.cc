// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tests/hosts/own_machine.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"

namespace fsdp {
namespace {

// "inside", or the reason for not being inside; unset before EnterOwnMachine.
constexpr char kVariable[] = "FSDP_OWN_MACHINE";

std::vector<std::string> InNewNamespaces(std::vector<std::string> command) {
  command.insert(command.begin(), {"unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork",
                                   "--kill-child", "--mount-proc", "--"});
  return command;
}

// Empty if `command` succeeds; otherwise its output, and `advice`.
std::string WhyFails(const std::vector<std::string>& command, const std::string& advice) {
  const absl::StatusOr<ProgramResult> result = RunProgram(command, absl::Seconds(30));
  if (result.ok() && result->exit_status == 0) return "";
  return absl::StrCat(result.ok() ? result->output : std::string(result.status().message()), "; ", advice);
}

std::string WhyImpossible() {
  std::string reason = WhyFails({"ip", "-V"}, "install iproute2");
  if (!reason.empty()) return reason;
  return WhyFails(InNewNamespaces({"ip", "link", "add", "probe", "type", "bridge"}),
                  "user namespaces are forbidden here, or the kernel has no bridge");
}

// Returns in a child, which runs the tests. Process 1 inherits the processes whose parents have died, and waits for
// them: a host does not end before each of its processes has been waited for.
void BeInit() {
  const pid_t tests = fork();
  if (tests == 0) return;
  while (true) {
    int status = 0;
    const pid_t ended = wait(&status);
    if (ended == tests) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    if (ended < 0 && errno != EINTR) _exit(1);
  }
}

}  // namespace

void EnterOwnMachine(char** argv) {
  if (getenv(kVariable) != nullptr) {
    if (getpid() == 1) BeInit();
    return;
  }
  // The tests' PATH may lack the directories of ip(8).
  const char* const path = getenv("PATH");
  setenv("PATH", absl::StrCat(path == nullptr ? "/usr/bin:/bin" : path, ":/usr/sbin:/sbin").c_str(), 1);
  const std::string reason = WhyImpossible();
  setenv(kVariable, reason.empty() ? "inside" : reason.c_str(), 1);
  if (!reason.empty()) return;
  // unshare gets the program's path, since its own /proc/self/exe is unshare.
  std::vector<std::string> command = InNewNamespaces({"/proc/self/exe"});
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0) command.back() = self;
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  for (char** argument = argv + 1; *argument != nullptr; ++argument) arguments.push_back(*argument);
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  setenv(kVariable, absl::StrCat("unshare: ", std::strerror(errno)).c_str(), 1);
}

std::string WhyNoOwnMachine() {
  const char* const state = getenv(kVariable);
  if (state == nullptr) return "the program was not started by hosts_main";
  return std::strcmp(state, "inside") == 0 ? "" : state;
}

}  // namespace fsdp
