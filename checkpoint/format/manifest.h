// SPDX-License-Identifier: Apache-2.0
//
// Manifest: what a checkpoint holds, in which bytes of which files, with which digests. The record in a rank file has
// the same form, for that file alone, so a manifest is what its records say, merged. Types and pure functions on them;
// the JSON form is manifest_json.h's.
#ifndef FSDP_CHECKPOINT_FORMAT_MANIFEST_H_
#define FSDP_CHECKPOINT_FORMAT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/digest.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// What a longer extent of payload is digested in: whoever wants a part of it reads no more than this beyond each end.
// Another world size cuts every tensor elsewhere, so longer blocks were read twice: a quarter of the bytes of 8 ranks
// for 3. Shorter ones would fill the manifest.
inline constexpr int64_t kDigestBlockBytes = int64_t{1} << 20;

// Texts are small: longer ones are neither written nor read.
inline constexpr int64_t kMaxTextBytes = int64_t{256} << 20;

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

// An extent of payload, not empty, as it is written, with digests that are still to be made.
StoredExtent NewPayloadExtent(const ByteRange& range);

// What decoding accepts: a power of two from 64 KiB to kBlockBytes.
bool IsDigestBlock(int64_t nbytes);

// Where a file was written that a later save links: its name there, and that save.
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
  std::optional<ByteRange> record;    // where a rank file describes itself
  std::string unknown;                // members that this release does not know, as JSON ", \"a\": 1"

  // Of a file that an earlier save wrote and this one links.
  std::optional<StoredOrigin> origin = {};
};

// Elements `interval` of a tensor, at byte `offset` of file `file`.
struct StoredInterval {
  Interval interval;
  int file = 0;  // index into Manifest::files
  int64_t offset = 0;
};

struct StoredTensor {
  StateKey key;
  std::vector<std::string> aliases;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<StoredInterval> intervals;  // sorted by begin
  std::string unknown;
};

struct StoredText {
  StateKey key;
  int file = 0;
  ByteRange range;  // of its UTF-8; may be empty
};

// Indices into Manifest::files. Any files.size() of the files in both lists can be lost and rebuilt from the remaining
// ones. Both lists are empty in a checkpoint without parity.
struct StoredParity {
  std::vector<int> data;   // the files that parity covers, sorted by name
  std::vector<int> files;  // the parity files, in the order of the code
};

// What all files of one save have in common.
struct SaveIdentity {
  std::string id;  // 32 hexadecimal digits, random; "save_id" in JSON
  int64_t step = 0;
  StateDictType type = StateDictType::kFull;
  int world_size = 1;
  int writers = 1;       // ranks that wrote a file
  std::string producer;  // name and version of the program
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

// What one rank file says about itself. files[0] is the rank file, the others are those that it links (StoredOrigin).
struct FileRecord : RecordHeader, StoredValues {
  std::string unknown = {};  // as StoredFile::unknown
};

// What a whole checkpoint holds.
struct Manifest : StoredValues {
  SaveIdentity save;
  std::vector<FlatUnitLayout> units;
  StoredParity parity;
  std::string unknown;
};

// The extent of `file` that byte `offset` lies in; null when none does.
const StoredExtent* ExtentAt(const StoredFile& file, int64_t offset);

// Adds `extent` to the extents of `file`, in the order of offsets.
void InsertExtent(StoredExtent extent, StoredFile& file);

// The ranges of [0, nbytes) that none of `taken`, sorted and disjoint, covers.
std::vector<ByteRange> RangesBetween(const std::vector<ByteRange>& taken, int64_t nbytes);

// kDataLoss, naming tensor and elements, when the intervals of `tensor` do not cover it exactly once.
absl::Status CheckCovered(const StoredTensor& tensor);

// The files and tensors of `records`, one record per rank file: each tensor once, with its intervals from all records,
// sorted by begin. Texts are left out. kFailedPrecondition when two records disagree about a tensor's dtype or shape.
absl::StatusOr<StoredValues> MergeRecords(const std::vector<FileRecord>& records);

// Texts of messages: `tensor "model/w"`, `bytes 8192 to 4202495`, and
// `rank-00003-of-00008.h5, bytes 8192 to 4202495 (tensor "model/w", block 0): digest 1f2e... != recorded 99aa...`.
std::string Describe(const StateKey& key);
std::string Describe(const ByteRange& range);
std::string DamagedBlock(const std::string& file, const ByteRange& range, const std::string& what, const Digest& actual,
                         const Digest& recorded);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMAT_MANIFEST_H_
