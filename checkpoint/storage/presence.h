// SPDX-License-Identifier: Apache-2.0
//
// IsThere, TypeOfEntry, TypeOfTarget: whether a name is taken, and by what, for decisions that a wrong answer would
// spoil: an error of a disk or a network must not make a directory look empty, or an old checkpoint look absent.
// FileSystem::Exists, which cannot return an error, is true then.
#ifndef FSDP_CHECKPOINT_STORAGE_PRESENCE_H_
#define FSDP_CHECKPOINT_STORAGE_PRESENCE_H_

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

// Whether anything has the name `path`, even a dangling symbolic link. An error, such as EIO or ESTALE, if neither is
// known. Looks at the operating system's files.
absl::StatusOr<bool> IsThere(const std::string& path);

// The type of the entry itself, a link not followed; not_found if nothing has the name. Errors as IsThere.
absl::StatusOr<std::filesystem::file_type> TypeOfEntry(const std::string& path);

// The same of what `path` leads to, through links; not_found for a dangling one.
absl::StatusOr<std::filesystem::file_type> TypeOfTarget(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_PRESENCE_H_
