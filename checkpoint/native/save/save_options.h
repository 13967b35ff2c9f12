// SPDX-License-Identifier: Apache-2.0
//
// SaveOptions: the options of SaveCheckpoint.
#ifndef FSDP_CHECKPOINT_NATIVE_SAVE_SAVE_OPTIONS_H_
#define FSDP_CHECKPOINT_NATIVE_SAVE_SAVE_OPTIONS_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Streams a state. On rank 0 it calls `write` with whole tensors, some at a time, until every tensor of the state has
// been passed once; on the other ranks it takes part in gathering them and does not call `write`. An error of `write`
// ends the stream. Example: FullyShardedDataParallel::StreamFullState.
using StateStream = std::function<absl::Status(const std::function<absl::Status(const StateDict& part)>& write)>;

struct SaveOptions {
  // Behaviour.

  // Replace the step if it exists: the new one is completed first, then the two are exchanged. Otherwise
  // kAlreadyExists.
  bool overwrite = false;

  // The name of the checkpoint in ROOT; default: step- and eight digits. CheckCheckpointName
  // (native/format/named_step.h) has the rules; the manifest records it, and searches of a ROOT find it by its step.
  std::string name = {};

  // The kind of checkpoint; default: the state's. kFull for a SHARDED or LOCAL state: all ranks write their elements
  // into one checkpoint.h5, and nothing is gathered. Other changes of kind are for ckpt convert.
  std::optional<StateDictType> type = {};

  // For a kFull state that is never whole in memory: the state then names tensors without elements, and `stream`,
  // called once on every rank, supplies the elements. Nothing else communicates during the call. Empty: the state has
  // the elements.
  StateStream stream = {};

  // Number of parity files. That many lost or damaged files of the checkpoint can be rebuilt (ckpt repair). Costs
  // reading the rank files once. Must be 0 for kFull, which has no rank files.
  int parity = 0;

  // The path of an earlier checkpoint, or empty. Datasets that are unchanged since then are linked, not written again,
  // if the kind and the number of writers are the same. Costs digesting everything once more. If the earlier checkpoint
  // is gone or unreadable, everything is written, and `note` is called with the reason.
  std::string base = {};

  // Called with sentences for people, on rank 0 and from any thread: leftovers of crashes that were removed, bytes that
  // were not written again. May be empty.
  std::function<void(const std::string& sentence)> note = {};

  // Performance.

  // Threads that write one rank's file.
  int io_threads = 2;

  // Threads to use instead of creating io_threads; not owned, must outlive the call. May be null.
  ThreadPool* pool = nullptr;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_SAVE_OPTIONS_H_
