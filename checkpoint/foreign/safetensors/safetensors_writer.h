// SPDX-License-Identifier: Apache-2.0
//
// WriteSafetensors: writes a model as one safetensors file, pulled piece by piece from a reader, in bounded memory. The
// file is byte for byte the reference library's for the same tensors and metadata, so equal models give equal files.
//
//   // A state dict that is whole in this process.
//   FSDP_RETURN_IF_ERROR(WriteSafetensors("model.safetensors", state, ReadFromMemory(state)));
#ifndef FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_WRITER_H_
#define FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_WRITER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_header.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct SafetensorsOptions {
  // Behaviour.

  // `__metadata__`. Hugging Face refuses a file that does not name its framework.
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  // Replace an existing file or directory, by one rename; otherwise kAlreadyExists.
  bool overwrite = false;

  FileSystem* file_system = &PosixFileSystem();  // tests inject faults

  // Performance.

  int64_t buffer_bytes = int64_t{32} << 20;  // of payload in memory, over all threads
  int io_threads = 2;
  // May be empty. Called by one thread at a time.
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress;
};

// The model tensors of `contents`, in its order, without offsets. Everything else is left out, including aliases of a
// shared parameter, as Hugging Face leaves them out.
std::vector<SafetensorsEntry> ModelEntries(const StateDict& contents);

// Creates the file `path` from the model tensors of `contents` (shards are ignored) and `read`. It is written to a
// hidden sibling, fsynced, and renamed to `path`; a failure leaves nothing behind. Blocks until it is durable.
absl::Status WriteSafetensors(const std::string& path, const StateDict& contents, const PayloadReader& read,
                              const SafetensorsOptions& options = {});

// The lower-level step: fills the empty file `file` from `entries` and syncs it. For files of a directory that is
// itself staged.
absl::Status FillSafetensorsFile(File& file, std::vector<SafetensorsEntry> entries, const PayloadReader& read,
                                 const SafetensorsOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_WRITER_H_
