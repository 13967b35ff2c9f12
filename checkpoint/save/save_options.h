// SPDX-License-Identifier: Apache-2.0
//
// SaveOptions: how SaveCheckpoint saves.
#ifndef FSDP_CHECKPOINT_SAVE_SAVE_OPTIONS_H_
#define FSDP_CHECKPOINT_SAVE_SAVE_OPTIONS_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Calls `write`, on rank 0 alone, with every tensor of a state in turn, whole, several at a time, and takes part in
// gathering them on the others: FullyShardedDataParallel::StreamFullState.
using StateStream = std::function<absl::Status(const std::function<absl::Status(const StateDict& part)>& write)>;

struct SaveOptions {
  // Behaviour.

  // Replace the step if it exists: the new one is complete first, then they change places. Otherwise kAlreadyExists.
  bool overwrite = false;

  // The kind of checkpoint; default: the state's. kFull of a SHARDED or LOCAL state: all ranks write what they hold
  // into the one checkpoint.h5, and nothing is gathered. Other changes of kind are for ckpt convert.
  std::optional<StateDictType> type = {};

  // For a kFull state that is never whole in memory: it names tensors without their elements, which `stream`, called
  // once on every rank, gives. Nothing else communicates meanwhile. Empty: the state has them.
  StateStream stream = {};

  // Parity files beside the rank files, from which any so many lost or damaged files can be made again (ckpt repair).
  // Costs reading the rank files once. Not for kFull, which has no rank files.
  int parity = 0;

  // The path of an earlier checkpoint; empty: none. Datasets that are in it unchanged are linked, not written again,
  // where the kind and the number of writers are the same. Costs digesting everything once more. Where it is gone, or
  // is no checkpoint, everything is written, and `note` says so.
  std::string base = {};

  // Gets sentences for people, on rank 0 and in no particular thread: what of earlier crashes was swept, what was not
  // written again. May be empty.
  std::function<void(const std::string& sentence)> note = {};

  // Performance.

  // Threads that write one rank's file.
  int io_threads = 2;

  // Threads to use instead, which outlive the call; null: io_threads of the save's own.
  ThreadPool* pool = nullptr;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SAVE_SAVE_OPTIONS_H_
