// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/job_identity.h"

#include <sys/random.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/digest.h"

namespace fsdp {
namespace {

// Longer names are cut, and a digest of the whole name replaces the rest.
constexpr size_t kLongestName = 200;
constexpr size_t kDigestLetters = 16;

std::string ShortDigest(const std::string& text) { return DigestOf(text).ToHex().substr(0, kDigestLetters); }

// Equal only for equal texts, unlike base/quote.h's result, because names are compared.
std::string ShortName(const std::string& text) {
  const std::string escaped = absl::CEscape(text);
  if (escaped.size() <= kLongestName) return escaped;
  return absl::StrCat(escaped.substr(0, kLongestName - kDigestLetters - 3), "...", ShortDigest(text));
}

std::string TextOf(const EnvironmentLookup& getenv, const char* name) { return getenv(name).value_or(""); }

// The launch id of this job. A variable that was inherited from another job does not match MASTER_PORT and is ignored.
std::string LaunchOf(const EnvironmentLookup& getenv) {
  const std::string launch = TextOf(getenv, kLaunchIdVariable);
  return absl::StartsWith(launch, absl::StrCat(TextOf(getenv, "MASTER_PORT"), ".")) ? launch : "";
}

// Without a run id, the agent's address identifies the run: its port is taken for as long as the job runs, and all
// agents know it.
std::string TorchrunOf(const EnvironmentLookup& getenv) {
  const std::string run = TextOf(getenv, "TORCHELASTIC_RUN_ID");
  if (run != "none") return run;
  const std::string host = TextOf(getenv, "MASTER_ADDR");
  const bool has_agent_store = TextOf(getenv, "TORCHELASTIC_USE_AGENT_STORE") == "True" && !host.empty();
  return has_agent_store ? absl::StrCat("at ", host, ":", TextOf(getenv, "MASTER_PORT")) : "";
}

std::string SlurmOf(const EnvironmentLookup& getenv) {
  // Slurm before 14.11 sets the older names; newer releases set both.
  const auto either = [&](const char* name, const char* older) {
    const std::string text = TextOf(getenv, name);
    return text.empty() ? TextOf(getenv, older) : text;
  };
  const std::string job = either("SLURM_JOB_ID", "SLURM_JOBID");
  const std::string step = either("SLURM_STEP_ID", "SLURM_STEPID");
  return job.empty() || step.empty() ? job : absl::StrCat(job, ".", step);
}

// The parts are separated by zero bytes, which none of them can contain.
std::string CommandOf(const ProcessEvidence& evidence) {
  const std::string all = absl::StrCat(evidence.user, std::string(1, '\0'), evidence.directory, std::string(1, '\0'),
                                       absl::StrJoin(evidence.command_line, std::string(1, '\0')));
  return absl::StrCat(ShortDigest(all), " in ", evidence.directory);
}

}  // namespace

ProcessEvidence ProcessEvidence::OfThisProcess() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  char directory[4096];
  return {.user = geteuid(),
          .directory = getcwd(directory, sizeof(directory)) == nullptr ? "" : directory,
          .command_line = absl::StrSplit(text, '\0')};
}

std::string IdentifyJob(const EnvironmentLookup& getenv, const ProcessEvidence& evidence) {
  // Ordered by precedence; see the header.
  const std::pair<const char*, std::string> names[] = {
      {"launch", LaunchOf(getenv)},
      {"run", TextOf(getenv, kRunIdVariable)},
      {"torchrun", TorchrunOf(getenv)},
      {"pmix", TextOf(getenv, "PMIX_NAMESPACE")},
      {"openmpi", TextOf(getenv, "OMPI_MCA_ess_base_jobid")},
      {"slurm", SlurmOf(getenv)},
      {"pbs", TextOf(getenv, "PBS_JOBID")},
      {"lsf", TextOf(getenv, "LSB_JOBID")},
  };
  // The kind is part of the name, so that "run 7" and "slurm 7" are different jobs.
  for (const auto& [kind, name] : names) {
    if (!name.empty()) return absl::StrCat(kind, " ", ShortName(name));
  }
  return absl::StrCat("command ", ShortName(CommandOf(evidence)));
}

// Linux before 3.17 has no getrandom; the pid is then the best substitute.
std::string NewLaunchId(int port) {
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) number = static_cast<uint64_t>(getpid());
  return absl::StrFormat("%d.%016x", port, number);
}

}  // namespace fsdp
