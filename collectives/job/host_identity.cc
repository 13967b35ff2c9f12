// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/host_identity.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fsdp {
namespace {

// "pid:[4026531836]". Empty if /proc is not mounted, and the boot id is empty too. Two such processes count as on one
// host; if they are not, CreateShmFabric fails with the path that it could not open.
std::string ProcessNamespace() {
  char link[64];
  const ssize_t n = readlink("/proc/self/ns/pid", link, sizeof(link));
  return std::string(link, static_cast<size_t>(std::max<ssize_t>(n, 0)));
}

}  // namespace

HostIdentity HostIdentity::OfThisProcess(std::string_view host_id) {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, HOST_NAME_MAX);
  const char* const variable = getenv("FSDP_HOSTID");
  if (host_id.empty() && variable != nullptr) host_id = variable;
  if (!host_id.empty()) {
    return {.name = name, .kernel = absl::StrCat("FSDP_HOSTID ", std::string(host_id))};
  }
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return {.name = name, .kernel = absl::StrCat(boot_id, " ", ProcessNamespace())};
}

std::string HostIdentity::ToBlob() const { return absl::StrCat(name, "\n", kernel); }

HostIdentity HostIdentity::FromBlob(const std::string& blob) {
  std::pair<std::string, std::string> fields = absl::StrSplit(blob, absl::MaxSplits('\n', 1));
  return {.name = std::move(fields.first), .kernel = std::move(fields.second)};
}

}  // namespace fsdp
