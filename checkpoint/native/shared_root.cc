// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/shared_root.h"

#include <unistd.h>

#include <array>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unknown host";
}

// The file contains its nonce: a directory listing may be stale, and a name does not prove that the data arrived.
absl::Status MakeProbe(FileSystem& files, const std::string& path, std::string_view nonce) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(path));
  return file->Write(0, {reinterpret_cast<const std::byte*>(nonce.data()), nonce.size()});
}

}  // namespace

absl::Status CheckSharedRoot(FileSystem& files, const std::string& root, ProcessGroup& group) {
  const std::string own = group.rank() == 0 ? NewNonce() : "";
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> nonces, group.AllGatherObject(own));
  const std::string& nonce = nonces[0];
  const std::string path = JoinPath(root, absl::StrCat(".shared-", nonce));
  FSDP_RETURN_IF_ERROR(AllReduceStatus(group, group.rank() == 0 ? MakeProbe(files, path, nonce) : absl::OkStatus()));
  // Reading, not Exists: a stale NFS cache may list a name whose contents are missing.
  const absl::StatusOr<std::string> seen = ReadFile(files, path, static_cast<int64_t>(nonce.size()));
  const bool sees = seen.ok() && *seen == nonce;
  absl::StatusOr<std::vector<std::string>> hosts = group.AllGatherObject(absl::StrCat(sees ? "+" : "-", HostName()));
  // Removed after the gather, when every rank has looked, and before any error is returned, so that no probe stays.
  const absl::Status removed = group.rank() == 0 ? files.Unlink(path) : absl::OkStatus();
  FSDP_RETURN_IF_ERROR(hosts.status());
  std::vector<std::string> blind;
  for (size_t rank = 0; rank < hosts->size(); ++rank) {
    const std::string& host = (*hosts)[rank];
    if (host[0] == '-') blind.push_back(absl::StrCat("rank ", rank, " (", Printable(host.substr(1)), ")"));
  }
  if (blind.empty()) return AllReduceStatus(group, removed);
  return absl::FailedPreconditionError(absl::StrCat(
      root, ": ", absl::StrJoin(blind, ", "), " of ", hosts->size(), " ranks do not see what rank 0 (",
      Printable(hosts->front().substr(1)),
      ") writes there: expected one directory that all hosts share; mount the same file system at this path on each"));
}

}  // namespace fsdp
