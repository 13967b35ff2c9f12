// SPDX-License-Identifier: Apache-2.0
//
// WriteTreeFile: one file of a checkpoint from nothing to durable: laid out, payload written and digested, the record
// of a rank file filled in, synced. Returns what a manifest has to say of it. LaidOutFile is for whoever has something
// to do between the first step and the others.
#ifndef FSDP_CHECKPOINT_TREE_TREE_FILE_H_
#define FSDP_CHECKPOINT_TREE_TREE_FILE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/hdf5/hdf5_file.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/tree/payload_writer.h"
#include "fsdp/checkpoint/tree/tree_layout.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Gives elements of a tensor: their address, wherever they are, or `scratch` after putting them there. Called from
// several threads, for at most kBlockBytes.
using ElementReader = std::function<absl::StatusOr<const std::byte*>(const Interval& interval, std::byte* scratch)>;

struct TreeFile {
  struct TensorPart {
    StateKey key;
    std::vector<std::string> aliases;
    DType dtype = DType::kFloat32;
    Shape shape;
    Interval interval;               // the part of it in this file
    ElementReader read;              // of elements of `interval`
    std::vector<VirtualPart> parts;  // if any, the tensor is only shown, and `read` is not used
    int flat = -1;                   // if not, the elements lie in flats[flat], from its element `flat_begin` on
    int64_t flat_begin = 0;
    int link = -1;  // if not, the elements lie in links[link] already, from byte `link_offset` on
    int64_t link_offset = 0;
  };
  // A long dataset that several tensors share; what is between them is zero.
  struct FlatPart {
    std::string path;
    std::string unit;  // attribute of the group of the unit
    DType dtype = DType::kFloat32;
    int64_t numel = 0;
  };
  struct Text {
    StateKey key;
    std::string text;
  };

  std::string name;
  std::vector<TensorPart> tensors;
  std::vector<FlatPart> flats;
  std::vector<Text> texts;
  std::vector<StoredFile> links;  // of earlier saves
  bool has_record = false;        // a rank file: describes itself, and parts without elements are only named there
  bool is_shared = false;  // the elements of tensors come later, from WriteTreeParts; their extents are not described
  std::string warning;     // attribute of the root group; empty: none
};

// Reads the flat dataset `flat` of `tree`, which must outlive the reader.
BlockReader FlatBlockReader(const TreeFile& tree, int flat);

// A file that is laid out, and not there yet.
class LaidOutFile {
 public:
  // Lays `tree` out, which must outlive this. What all files of a save share (save_id, step, type, world_size, writers,
  // rank, producer, units) is taken from `identity`.
  static absl::StatusOr<LaidOutFile> Create(const TreeFile& tree, const Manifest& identity);

  // What Write returns, but for digests.
  Manifest Describe() const;

  // Makes the file in `directory`. The result has it, then the links, and its tensors and texts. `write` leaves nothing
  // for later. An error of writing names the file; one of an ElementReader comes back as it is.
  absl::StatusOr<Manifest> Write(FileSystem& files, const std::string& directory, ThreadPool& pool,
                                 const PayloadWriteOptions& write) const;

 private:
  LaidOutFile(const TreeFile& tree, Manifest identity, TreeLayout layout)
      : tree_(&tree), identity_(std::move(identity)), layout_(std::move(layout)) {}

  const TreeFile* tree_;
  Manifest identity_;
  TreeLayout layout_;
};

// Both.
absl::StatusOr<Manifest> WriteTreeFile(FileSystem& files, const std::string& directory, const TreeFile& tree,
                                       const Manifest& identity, ThreadPool& pool, const PayloadWriteOptions& write);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TREE_TREE_FILE_H_
