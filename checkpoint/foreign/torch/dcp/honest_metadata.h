// SPDX-License-Identifier: Apache-2.0
//
// HonestMetadata, for tests: the .metadata of `tensors` matrices, with one row of each in each of `ranks` files, as
// torch writes it: protocol 4, every object numbered by MEMOIZE, globals and texts written once, and the offsets of a
// chunk read again by the MetadataIndex of its position.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_HONEST_METADATA_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_HONEST_METADATA_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fsdp {

class HonestMetadata {
 public:
  static std::string Of(int tensors, int ranks) {
    HonestMetadata metadata;
    const std::string module = "torch.distributed.checkpoint.metadata\n";
    metadata.bytes_ = "\x80\x04";
    metadata.Object(module + "Metadata", [&](HonestMetadata& m) {
      m.Text("state_dict_metadata");
      m.Dict([&] {
        for (int t = 0; t < tensors; ++t) m.Tensor(module, Name(t), ranks);
      });
      m.Text("storage_data");
      m.Dict([&] {
        for (int t = 0; t < tensors; ++t) {
          for (int r = 0; r < ranks; ++r) m.Place(module, Name(t), r, 4096 * t, m.offsets_[t * ranks + r]);
        }
      });
    });
    return metadata.bytes_ + ".";
  }

 private:
  static std::string Name(int tensor) { return absl::StrCat("model.layers.", tensor, ".mlp.gate_proj.weight"); }

  static std::string Little(int64_t value) {
    std::string bytes;
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
    return bytes;
  }

  void Put() {
    bytes_ += "\x94";
    ++next_;
  }

  // Appends `opcodes` with PUT the first time, and GET afterwards.
  void Once(const std::string& opcodes) {
    const auto [at, is_new] = memo_.try_emplace(opcodes, next_);
    bytes_ += is_new ? opcodes : "j" + Little(at->second);
    if (is_new) Put();
  }

  void Text(const std::string& text) { Once("X" + Little(static_cast<int64_t>(text.size())) + text); }
  void Global(const std::string& name) { Once("c" + name + "\n"); }
  void Integer(int64_t value) {  // in the fewest bytes
    bytes_ += value < 256 ? std::string{'K', static_cast<char>(value)} : "J" + Little(value);
  }

  template <typename Members>
  void Dict(const Members& members) {
    bytes_ += "}";
    Put();
    bytes_ += "(";
    members();
    bytes_ += "u";
  }

  template <typename Members>
  void Object(const std::string& name, const Members& members) {
    Global(name);
    bytes_ += ")\x81";
    Put();
    Dict([&] { members(*this); });
    bytes_ += "b";
  }

  void Size(int64_t rows, int64_t columns) {
    Global("torch\nSize");
    Integer(rows);
    Integer(columns);
    bytes_ += "\x86";
    Put();
    bytes_ += "\x85";
    Put();
    bytes_ += "R";
    Put();
  }

  void Tensor(const std::string& module, const std::string& name, int ranks) {
    Text(name);
    Object(module + "TensorStorageMetadata", [&](HonestMetadata& m) {
      m.Text("properties");
      m.Object(module + "TensorProperties", [](HonestMetadata& p) {
        p.Text("dtype");
        p.Global("torch\nfloat32");
      });
      m.Text("size");
      m.Size(ranks, 64);
      m.Text("chunks");
      m.bytes_ += "]";
      m.Put();
      m.bytes_ += "(";
      for (int r = 0; r < ranks; ++r) {
        m.Object(module + "ChunkStorageMetadata", [r](HonestMetadata& c) {
          c.Text("offsets");
          c.Size(r, 0);
          c.offsets_.push_back(c.next_ - 1);
          c.Text("sizes");
          c.Size(1, 64);
        });
      }
      m.bytes_ += "e";
    });
  }

  // `offsets`: the memo number of the chunk's offsets.
  void Place(const std::string& module, const std::string& name, int rank, int64_t offset, int64_t offsets) {
    Object(module + "MetadataIndex", [&](HonestMetadata& m) {
      m.Text("fqn");
      m.Text(name);
      m.Text("offset");
      m.bytes_ += "j" + Little(offsets);
    });
    Object("torch.distributed.checkpoint.filesystem\n_StorageInfo", [&](HonestMetadata& m) {
      m.Text("relative_path");
      m.Text(absl::StrCat("__", rank, "_0.distcp"));
      m.Text("offset");
      m.Integer(offset);
      m.Text("length");
      m.Integer(4096);
    });
  }

  std::string bytes_;
  int64_t next_ = 0;              // in the memo
  std::vector<int64_t> offsets_;  // in the memo, of each chunk
  std::unordered_map<std::string, int64_t> memo_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_HONEST_METADATA_H_
