// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/c_api/c_state.h"
#include "fsdp/checkpoint/c_api/c_status.h"
#include "fsdp/checkpoint/c_api/callback_group.h"
#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/async_saver.h"

// The saver splits its own group from `group`, so it is destroyed first.
struct fsdp_saver {
  std::unique_ptr<fsdp::CallbackGroup> group;
  std::unique_ptr<fsdp::AsyncSaver> saver;
};

namespace fsdp {
namespace {

constexpr int kMostThreads = 1024;

// Like AllReduceStatus, but in a group of one rank the error stays unchanged, without a prefix.
absl::Status AgreeAmong(CallbackGroup& group, const absl::Status& mine) {
  return group.size() == 1 ? mine : AllReduceStatus(group, mine);
}

// Sets the options that a caller has given; the others keep their values.
absl::Status ReadOptions(const fsdp_save_options* given, SaveOptions& save) {
  fsdp_save_options options = {};
  FSDP_RETURN_IF_ERROR(CopyOptions(given, "options", options));
  if (options.parity < 0 || options.io_threads < 0 || options.io_threads > kMostThreads) {
    return absl::InvalidArgumentError(absl::StrCat("options: parity is ", options.parity, " and io_threads is ",
                                                   options.io_threads, ", wanted at least 0, and at most ",
                                                   kMostThreads, " threads"));
  }
  save.overwrite = options.overwrite != 0;
  save.parity = options.parity;
  if (options.io_threads > 0) save.io_threads = options.io_threads;
  if (options.name != nullptr) save.name = options.name;
  if (options.base != nullptr) save.base = options.base;
  return absl::OkStatus();
}

absl::Status CheckState(const fsdp_state* state) {
  FSDP_RETURN_IF_ERROR(CheckPointer(state, "state"));
  return CheckUnitsOf(state->state);
}

absl::StatusOr<std::string> Save(const fsdp_state* state, const char* root, int64_t step, const fsdp_group* given,
                                 const fsdp_save_options* options) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<CallbackGroup> group, CallbackGroup::Create(given));
  // A rank whose arguments are refused must not leave the others waiting in their gather.
  SaveOptions save;
  absl::Status mine = CheckState(state);
  if (mine.ok()) mine = CheckPointer(root, "root");
  if (mine.ok()) mine = ReadOptions(options, save);
  FSDP_RETURN_IF_ERROR(AgreeAmong(*group, mine));
  absl::StatusOr<std::string> saved = SaveCheckpoint(state->state, root, step, *group, save);
  if (!absl::IsAlreadyExists(saved.status()) || save.overwrite) return saved;
  return WithMessage(saved.status(), absl::StrCat(saved.status().message(), "; options->overwrite replaces it"));
}

absl::StatusOr<std::unique_ptr<fsdp_saver>> CreateSaver(const char* root, const fsdp_group* given,
                                                        const fsdp_save_options* options) {
  AsyncSaverOptions async;
  // The library does not know whether the program computes on these cores, so only the niceness of the threads limits
  // them.
  async.processor_share = 1;
  auto saver = std::make_unique<fsdp_saver>();
  // An error of the group itself cannot be agreed on: it has no gather to do so.
  FSDP_ASSIGN_OR_RETURN(saver->group, CallbackGroup::Create(given));
  absl::Status mine = CheckPointer(root, "root");
  if (mine.ok()) mine = ReadOptions(options, async.save);
  FSDP_RETURN_IF_ERROR(AgreeAmong(*saver->group, mine));
  // Collective: it splits the group, so all ranks must have passed the agreement above.
  FSDP_ASSIGN_OR_RETURN(saver->saver, AsyncSaver::Create(root, *saver->group, async));
  return saver;
}

}  // namespace
}  // namespace fsdp

int32_t fsdp_save(const fsdp_state* state, const char* root, int64_t step, const fsdp_group* group,
                  const fsdp_save_options* options, char** path) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::string saved, fsdp::Save(state, root, step, group, options));
    return fsdp::GiveString(saved, path);
  });
}

int32_t fsdp_saver_create(const char* root, const fsdp_group* group, const fsdp_save_options* options,
                          fsdp_saver** saver) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(saver, "saver"));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<fsdp_saver> made, fsdp::CreateSaver(root, group, options));
    *saver = made.release();
    return absl::OkStatus();
  });
}

int32_t fsdp_saver_save(fsdp_saver* saver, const fsdp_state* state, int64_t step) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(saver, "saver"));
    // The save in progress and AgreeAmong use the program's gather, which allows one call at a time.
    FSDP_RETURN_IF_ERROR(saver->saver->Wait().status());
    FSDP_RETURN_IF_ERROR(fsdp::AgreeAmong(*saver->group, fsdp::CheckState(state)));
    return saver->saver->Save(state->state, step).status();
  });
}

int32_t fsdp_saver_wait(fsdp_saver* saver, char** path) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(saver, "saver"));
    FSDP_ASSIGN_OR_RETURN(const std::string saved, saver->saver->Wait());
    return fsdp::GiveString(saved, path);
  });
}

void fsdp_saver_free(fsdp_saver* saver) { delete saver; }
