// SPDX-License-Identifier: Apache-2.0
//
// All entries of a directory count as read, even if its reader does not open each of them: the files that a format
// reads are known only after it is opened, and a damaged directory cannot be opened. Members of every format are
// directly in the directory, so subdirectories need no listing: an output in one of them is found through the directory
// itself.
#include "fsdp/checkpoint/storage/input_paths.h"

#include <filesystem>
#include <system_error>

namespace fsdp {
namespace {

std::optional<std::string> Lookup(const std::map<FileIdentity, std::string>& paths, const std::string& path) {
  const std::optional<FileIdentity> identity = IdentityOf(path);
  if (!identity) return std::nullopt;
  const auto at = paths.find(*identity);
  return at == paths.end() ? std::nullopt : std::optional<std::string>(at->second);
}

}  // namespace

void InputPaths::AddOne(const std::string& path) {
  const std::optional<FileIdentity> identity = IdentityOf(path);
  if (!identity) return;
  read_.try_emplace(*identity, path);
  for (const std::string& parent : PhysicalParents(path)) {
    if (const auto directory = IdentityOf(parent)) around_.try_emplace(*directory, path);
  }
}

void InputPaths::Add(const std::string& path) {
  AddOne(path);
  std::error_code error;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_symlink(ignored)) {
      AddOne(it->path());
    } else if (const auto identity = IdentityOf(it->path())) {
      read_.try_emplace(*identity, it->path());  // the directories above it are known from `path`
    }
  }
}

std::optional<std::string> InputPaths::Find(const std::string& path) const { return Lookup(read_, path); }

std::optional<std::string> InputPaths::FindInside(const std::string& path) const { return Lookup(around_, path); }

}  // namespace fsdp
