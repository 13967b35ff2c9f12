// SPDX-License-Identifier: Apache-2.0
//
// Paths that are parts of checkpoints, or hold some, and are no checkpoint themselves: a file of a DCP directory, the
// cache of the Hugging Face hub, a pipeline of several models, a run with several checkpoints. Each is refused by what
// it is, with the path or the command to give next. Files that merely look like a checkpoint are in lookalike_file.h.
#ifndef FSDP_CHECKPOINT_FORMATS_KNOWN_PATHS_H_
#define FSDP_CHECKPOINT_FORMATS_KNOWN_PATHS_H_

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

// A path with what is needed to recognise it.
struct KnownPathProbe {
  std::string path;  // without trailing slashes
  std::string name;  // of the path in its directory
  bool is_directory = false;
  std::set<std::string> files = {};        // of a directory: names of everything that is no directory
  std::set<std::string> directories = {};  // of a directory: names of its directories
  std::function<bool(const std::string& path)> is_checkpoint = {};  // a format recognises the path

  bool HasFile(const std::string& file) const { return files.count(file) != 0; }
  // The weight files (IsWeightFileName) of a directory; a trainer's files only if there are no others.
  std::vector<std::string> Weights() const;
  // The directories in a directory that are checkpoints.
  std::vector<std::string> Checkpoints() const;
};

// A row of the table. `text` comes after the path: "is one file of a DCP directory: ...".
struct KnownPath {
  std::string_view name;
  bool (*matches)(const KnownPathProbe& probe);
  std::string (*text)(const KnownPathProbe& probe);
};

// In the order of recognition. Files are tried before the formats, which would read a part as a whole; directories
// after them.
const std::vector<KnownPath>& KnownFiles();
const std::vector<KnownPath>& KnownDirectories();

// "PATH is ...: what to do" of the first row that matches; empty if none does. Lists directories, and opens nothing but
// the small text that names the newest snapshot of a hub's cache and the metadata.pkl of torch_checkpointing.
std::string DescribeKnownPath(const PathProbe& probe, std::function<bool(const std::string& path)> is_checkpoint);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMATS_KNOWN_PATHS_H_
