// SPDX-License-Identifier: Apache-2.0
//
// CheckpointRows: measures a durable save, a verified load, verify and staging, compared with the floor set by disk and
// memory and with other libraries, on the same bytes. Rows, by the beginning of their names:
//
//   save, floor      the payload into one flat file (raw_file.h): space reserved, direct I/O through io_uring in blocks
//                    of 4 MiB, four in flight for each of --io_threads threads, one fsync. One file and one fsync,
//                    for any number of files of the checkpoint
//   save, pwrite     the same bytes through the page cache, one fsync
//   save, KIND       SaveCheckpoint, until the checkpoint is durable and committed; of one rank with --io_threads
//                    threads, or of 2 ranks that share them. FULL of 2 ranks: all write into the one file
//   save, parity     SHARDED of 2 ranks with one parity file, which is half as long as the payload; to make it, the
//                    payload is read again. Compared with `save, parity, floor`: as `save, floor`, but as many
//                    bytes as payload and parity together
//   save, H5Dwrite   the same tensors through HDF5, then fsync (hdf5_baseline.h)
//   save, h5py|torch|dcp   by python3, if it has them (benchmark_peers.py), then fsync, in one process that has
//                    imported them
//   load, floor      the flat file into the same memory, direct, four blocks in flight for each thread
//   load, pread      the flat file by the same threads through the page cache, with the kernel's read-ahead
//   load, verified   LoadCheckpoint of the SHARDED checkpoint of one rank, every digest compared; unverified: without
//   load, 3 from 8   by 3 concurrent ranks, which share the threads, of a checkpoint of 8 ranks, verified
//   load, H5Dread    the tensors of H5Dwrite's file; h5py, torch, dcp as above
//   verify           VerifyCheckpoint of the SHARDED checkpoint: every byte, NaN and infinity counted
//   stage, memcpy    a copy of the state into memory that was used before, by the same threads
//   stage, blocked   the time that AsyncSaver::Save blocks its caller, from its second save on, without the wait
//                    for the previous save
//
// Loads are measured cold, the page cache dropped for the files, and warm. A save makes new files; the files of the
// previous save are deleted untimed.
#ifndef FSDP_CHECKPOINT_BENCHMARK_CHECKPOINT_ROWS_H_
#define FSDP_CHECKPOINT_BENCHMARK_CHECKPOINT_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/benchmark/benchmark_tensors.h"
#include "fsdp/checkpoint/benchmark/paired_rows.h"
#include "fsdp/checkpoint/benchmark/peer_process.h"
#include "fsdp/checkpoint/benchmark/raw_file.h"
#include "fsdp/checkpoint/native/async_saver.h"
#include "fsdp/checkpoint/storage/write_queue.h"
#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

struct CheckpointRowsOptions {
  std::string directory;      // for the files; exists, and is empty
  std::string python;         // the interpreter of the peers; empty: no peers
  std::string peers;          // path of benchmark_peers.py
  int64_t payload_bytes = 0;  // of all tensors together
  int tensors = 100;          // number of tensors
  int io_threads = 2;
};

class CheckpointRows {
 public:
  // Writes the files for the loads.
  static absl::StatusOr<std::unique_ptr<CheckpointRows>> Create(const CheckpointRowsOptions& options);

  int64_t nbytes() const { return tensors_.nbytes(); }

  // The bytes that the last load wrote.
  absl::Span<const std::byte> loaded() const { return tensors_.loaded(); }

  // All rows; they refer to this object.
  std::vector<PairedRow> Rows();

 private:
  explicit CheckpointRows(const CheckpointRowsOptions& options, std::unique_ptr<ThreadPool> pool);

  struct SaveForm {
    StateDictType type = StateDictType::kSharded;  // of the checkpoint
    int64_t step = 0;
    int world_size = 1;
    int parity = 0;
  };

  void AddSaves(std::vector<PairedRow>& rows);
  void AddLoads(std::vector<PairedRow>& rows);
  void AddStaging(std::vector<PairedRow>& rows);

  PairedRow Row(const std::string& name, const std::string& floor, std::function<absl::Status()> run);
  PairedRow PeerRow(const std::string& name, const std::string& floor, const std::string& what);

  std::string Path(const std::string& name) const { return options_.directory + "/" + name; }
  absl::Status Save(const SaveForm& form) const;
  absl::Status Load(int64_t step, int world_size, bool verify) const;
  absl::Status Verify() const;
  absl::Status CopyAll();
  absl::StatusOr<double> StageOnly();
  absl::StatusOr<double> Peer(const std::string& what);
  absl::Status RemoveSaved() const;

  const CheckpointRowsOptions options_;
  const std::unique_ptr<ThreadPool> pool_;
  const BenchmarkTensors tensors_;
  const RawFile flat_;  // the floor of loads
  const AlignedBlock copy_;

  // Created by the first row that uses them.
  absl::StatusOr<std::unique_ptr<PeerProcess>> peer_ = std::unique_ptr<PeerProcess>();
  std::unique_ptr<ProcessGroup> alone_;
  std::unique_ptr<AsyncSaver> saver_;  // of alone_
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_CHECKPOINT_ROWS_H_
