// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/remote_checkpoint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"

namespace fsdp {
namespace {

// Each step costs a request. Uploads that are interrupted are few, so a run with more of them is not one of ours.
constexpr int kMaxIncompleteSteps = 1000;

}  // namespace

std::string RemoteStep(const std::string& run, const std::string& step_name) {
  return absl::StrCat(run, run.empty() ? "" : "/", step_name);
}

std::string RemoteManifestKey(const std::string& step) {
  return absl::StrCat(step, step.empty() ? "" : "/", kManifestName);
}

std::string RemoteFileKey(const std::string& step, const std::string& save_id, const std::string& file) {
  return absl::StrCat(step, step.empty() ? "" : "/", save_id, "/", file);
}

absl::StatusOr<std::vector<std::string>> ListRemoteSteps(ObjectStore& store, const std::string& run) {
  const std::string prefix = RemoteStep(run, "");
  // One level, so that the listing has a line per step, not per file.
  FSDP_ASSIGN_OR_RETURN(const ObjectListing listing, store.List(absl::StrCat(prefix, "step-"), /*one_level=*/true));
  std::vector<std::pair<int64_t, std::string>> steps;
  for (const std::string& folder : listing.folders) {
    const std::string name(absl::StripSuffix(absl::StripPrefix(folder, prefix), "/"));
    if (const std::optional<int64_t> step = ParseStepName(name)) steps.emplace_back(*step, name);
  }
  // By number: names of more than 8 digits would sort before shorter ones.
  std::sort(steps.begin(), steps.end());
  std::vector<std::string> names;
  for (auto& [step, name] : steps) names.push_back(std::move(name));
  return names;
}

absl::StatusOr<bool> IsRemoteCheckpoint(ObjectStore& store, const std::string& step) {
  const absl::Status status = store.Size(RemoteManifestKey(step)).status();
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  return status.ok();
}

absl::StatusOr<std::string> FindRemoteCheckpoint(ObjectStore& store, const std::string& prefix) {
  FSDP_ASSIGN_OR_RETURN(const bool is_checkpoint, IsRemoteCheckpoint(store, prefix));
  if (is_checkpoint) return prefix;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListRemoteSteps(store, prefix));
  // The newest step without a manifest may be an upload in progress, so an older complete one is the answer.
  int incomplete = 0;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    if (incomplete++ == kMaxIncompleteSteps) {
      return absl::NotFoundError(absl::StrCat(store.UrlOf(prefix), ": the newest ", kMaxIncompleteSteps,
                                              " steps are not complete; name a step"));
    }
    std::string step = RemoteStep(prefix, *name);
    FSDP_ASSIGN_OR_RETURN(const bool is_complete, IsRemoteCheckpoint(store, step));
    if (is_complete) return step;
  }
  return absl::NotFoundError(absl::StrCat(store.UrlOf(prefix), " holds no checkpoint: neither ", kManifestName,
                                          " nor a step-* with one",
                                          names.empty() ? "" : absl::StrCat("; ", names.back(), " is not complete")));
}

absl::StatusOr<RemoteManifest> ReadRemoteManifest(ObjectStore& store, const std::string& step) {
  const std::string key = RemoteManifestKey(step);
  RemoteManifest read;
  FSDP_ASSIGN_OR_RETURN(read.text, GetObject(store, key, kMaxManifestBytes));
  absl::StatusOr<Manifest> manifest = DecodeManifest(read.text);
  if (!manifest.ok()) return Annotate(manifest.status(), store.UrlOf(key));
  read.manifest = *std::move(manifest);
  // A manifest that was copied to another step's key must not be taken for that step. Other names, such as "best", may
  // have any step.
  const std::optional<int64_t> named = ParseStepName(step.substr(step.rfind('/') + 1));
  const SaveIdentity& save = read.manifest.save;
  if (!named || *named == save.known_step()) return read;
  return absl::DataLossError(absl::StrCat(store.UrlOf(key), ": the manifest is of ", save.StepText()));
}

absl::Status CheckRemoteFiles(ObjectStore& store, const std::string& step, const Manifest& manifest) {
  // One listing instead of a request for each file. Sorted in place: a map would be a second copy of it.
  FSDP_ASSIGN_OR_RETURN(ObjectListing listing,
                        store.List(RemoteFileKey(step, manifest.save.id, ""), /*one_level=*/false));
  const auto before = [](const ObjectEntry& a, const ObjectEntry& b) { return a.key < b.key; };
  std::sort(listing.objects.begin(), listing.objects.end(), before);
  for (const StoredFile& file : manifest.files) {
    const ObjectEntry wanted = {RemoteFileKey(step, manifest.save.id, file.name), file.nbytes};
    const auto found = std::lower_bound(listing.objects.begin(), listing.objects.end(), wanted, before);
    const std::string url = store.UrlOf(wanted.key);
    if (found == listing.objects.end() || found->key != wanted.key) {
      return absl::DataLossError(absl::StrCat(url, " is missing"));
    }
    if (found->nbytes == file.nbytes) continue;
    return absl::DataLossError(absl::StrCat(url, ": ", found->nbytes, " bytes, expected ", file.nbytes));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
