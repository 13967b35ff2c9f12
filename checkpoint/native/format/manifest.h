// SPDX-License-Identifier: Apache-2.0
//
// Manifest: the values of a checkpoint, the bytes of files that hold them, and the digests of these bytes. A rank file
// contains a FileRecord, which describes only that file; a manifest is the merged records:
//
//   FileRecord (rank 0)  |
//   FileRecord (rank 1)  |->  MergeRecords  ->  StoredValues  + SaveIdentity, units, parity  =  Manifest
//   ...                  |
//
// Types, and pure functions on them. Indices of files are into StoredValues::files of the same object. The JSON form is
// in manifest_json.h.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_MANIFEST_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/digest.h"
#include "fsdp/checkpoint/source/stored_values.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The digest blocks of payload. A reader of a part of an extent must read whole blocks to verify them, so up to a block
// too many at each end, and ranks that load another world size's files cut nearly every extent: with one block of
// 0.75 MB an extent, 3 ranks read the files of 8 ranks 1.25 times. Shorter blocks everywhere would make the manifest
// large, so extents of more than kShortExtentBytes have the long ones.
inline constexpr int64_t kShortDigestBlockBytes = int64_t{256} << 10;
inline constexpr int64_t kDigestBlockBytes = int64_t{1} << 20;
inline constexpr int64_t kShortExtentBytes = int64_t{4} << 20;

// The payload of one dataset.
struct StoredExtent {
  ByteRange range;
  std::vector<Digest> digests;        // one per block
  int64_t block_bytes = kBlockBytes;  // of each but the last, counted from the first byte of the range

  int64_t blocks() const { return (range.nbytes - 1) / block_bytes + 1; }
  ByteRange block(int64_t index) const;

  bool operator==(const StoredExtent& other) const {
    return range == other.range && digests == other.digests && block_bytes == other.block_bytes;
  }
};

// The extent of payload at `range`, which is not empty, with the block size that writers use and zero digests.
StoredExtent NewPayloadExtent(const ByteRange& range);

// True for a block size that readers accept: a power of two from 64 KiB to kBlockBytes.
bool IsDigestBlock(int64_t nbytes);

// The origin of a file that a later save links: the save that wrote it, and its name there.
struct StoredOrigin {
  std::string save_id;
  int64_t step = 0;
  std::string name;
};

struct StoredFile {
  std::string name;
  int64_t nbytes = 0;
  std::vector<StoredExtent> extents;  // sorted by offset, disjoint
  Digest rest_digest;                 // of all bytes outside of extents and record, in file order
  std::optional<ByteRange> record;    // the rank file's description of itself
  std::string unknown;                // members that this release does not know, as JSON ", \"a\": 1"

  // Set for a file that an earlier save wrote and this one links.
  std::optional<StoredOrigin> origin = {};
};

// Indices into Manifest::files. Any files.size() of the files in both lists can be lost and rebuilt from the remaining
// ones. Both lists are empty in a checkpoint without parity.
struct StoredParity {
  std::vector<int> data;   // the files that parity covers, sorted by name
  std::vector<int> files;  // the parity files, in the order of the code
};

// The properties that all files of one save have in common.
struct SaveIdentity {
  std::string id;        // 32 hexadecimal digits, random; "save_id" in JSON
  int64_t step = 0;      // 0 without has_step
  bool has_step = true;  // false for what was converted from a checkpoint that does not record its step
  StateDictType type = StateDictType::kFull;
  int world_size = 1;
  int writers = 1;        // ranks that wrote a file
  std::string producer;   // name and version of the program
  std::string name = {};  // of the checkpoint, if it is not StepName(step) (named_step.h)

  // StateDict::attributes. Like the texts, they are only in the first writer's record.
  RunMetadata attributes = {};

  // As in TensorSource::step: -1 if it is unknown.
  int64_t known_step() const { return has_step ? step : -1; }

  // "step 100", "an unknown step".
  std::string StepText() const;
};

// Values and the files that hold their bytes: the part that a manifest, a record and the result of a writer share.
struct StoredValues {
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;
  std::vector<StoredText> texts;
};

// The part of a rank file's record that is known before the file is laid out.
struct RecordHeader {
  SaveIdentity save;
  int rank = -1;                      // that wrote the file
  int parity_files = 0;               // how many the save makes
  std::vector<FlatUnitLayout> units;  // in the record of the first writer; empty in the others
};

// The record in a rank file: its description of itself. files[0] is the rank file, the others are those that it links
// (StoredOrigin).
struct FileRecord : RecordHeader, StoredValues {
  std::string unknown = {};  // as StoredFile::unknown
};

// The contents of a whole checkpoint.
struct Manifest : StoredValues {
  SaveIdentity save;
  std::vector<FlatUnitLayout> units;
  StoredParity parity;
  std::string unknown;

  // The digest of its text (sealed_json.h), when it was decoded.
  std::string digest = {};
};

// The extent of `file` that contains byte `offset`; null if no extent does.
const StoredExtent* ExtentAt(const StoredFile& file, int64_t offset);

// Adds `extent` to the extents of `file`, in the order of offsets.
void InsertExtent(StoredExtent extent, StoredFile& file);

// The ranges of [0, nbytes) that `taken`, sorted and disjoint, does not cover.
std::vector<ByteRange> RangesBetween(const std::vector<ByteRange>& taken, int64_t nbytes);

// kDataLoss, naming tensor and elements, when the intervals of `tensor` do not cover it exactly once.
absl::Status CheckCovered(const StoredTensor& tensor);

// The files and tensors of `records`, one record per rank file: each tensor once, with its intervals from all records,
// sorted by begin. Texts are left out. kFailedPrecondition when two records disagree about a tensor's dtype or shape.
absl::StatusOr<StoredValues> MergeRecords(const std::vector<FileRecord>& records);

// Texts of messages: `bytes 8192 to 4202495`, and
// `rank-00003-of-00008.h5, bytes 8192 to 4202495 (tensor "model/w", block 0): digest 1f2e... != recorded 99aa...`.
std::string Describe(const ByteRange& range);
std::string DamagedBlock(const std::string& file, const ByteRange& range, const std::string& what, const Digest& actual,
                         const Digest& recorded);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_MANIFEST_H_
