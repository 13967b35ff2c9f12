// SPDX-License-Identifier: Apache-2.0
//
// The three dicts of dcp_metadata.cc as Python's pickler writes dataclasses: NEWOBJ of the class without arguments,
// then BUILD with the dict of its fields. Fields with a default that newer versions of torch added
// (transform_descriptors) are left out, so that older and newer versions read the result.
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_encoding.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tensor.h"

namespace fsdp {
namespace {

class MetadataEncoder {
 public:
  explicit MetadataEncoder(const DcpMetadata& metadata) : metadata_(metadata) {}

  std::string Encode() && {
    BeginObject("torch.distributed.checkpoint.metadata.Metadata");
    pickle_.String("state_dict_metadata");
    BeginDict();
    for (const DcpEntry& entry : metadata_.entries) EncodeType(entry);
    pickle_.SetItems();
    pickle_.String("planner_data");
    BeginDict();
    // In the order of the state dict, which a reader takes from planner_data (dcp_metadata.cc).
    for (const DcpEntry& entry : metadata_.entries) EncodePath(entry);
    pickle_.SetItems();
    pickle_.String("storage_data");
    BeginDict();
    for (const DcpEntry& entry : metadata_.entries) EncodeStorage(entry);
    pickle_.SetItems();
    // Optional in torch; None is its default.
    pickle_.String("storage_meta");
    pickle_.None();
    pickle_.String("version");
    pickle_.String("1.0.0");
    EndObject();
    return std::move(pickle_).Finish();
  }

 private:
  void BeginDict() {
    pickle_.EmptyDict();
    pickle_.Mark();
  }

  // Starts an object of `type` whose state is a dict, to be filled until EndObject.
  void BeginObject(std::string_view type) {
    pickle_.Global(type);
    pickle_.EmptyTuple();
    pickle_.NewObject();
    BeginDict();
  }

  void EndObject() {
    pickle_.SetItems();
    pickle_.Build();
  }

  // function(argument), with `argument` pushing it.
  template <typename Push>
  void Call(std::string_view function, Push argument) {
    pickle_.Global(function);
    pickle_.Mark();
    argument();
    pickle_.Tuple();
    pickle_.Reduce();
  }

  void Size(absl::Span<const int64_t> sizes) {
    Call("torch.Size", [&] { pickle_.Integers(sizes); });
  }

  // name -> TensorStorageMetadata or BytesStorageMetadata.
  void EncodeType(const DcpEntry& entry) {
    pickle_.String(entry.name());
    if (!entry.is_tensor()) {
      pickle_.Global("torch.distributed.checkpoint.metadata.BytesStorageMetadata");
      pickle_.EmptyTuple();
      return pickle_.NewObject();
    }
    const DcpTensor& tensor = metadata_.tensors[entry.tensor()];
    BeginObject("torch.distributed.checkpoint.metadata.TensorStorageMetadata");
    pickle_.String("properties");
    EncodeProperties(tensor);
    pickle_.String("size");
    Size(tensor.shape.dims());
    pickle_.String("chunks");
    pickle_.EmptyList();
    pickle_.Mark();
    for (uint32_t i = tensor.first_chunk; i < tensor.end_chunk; ++i) {
      BeginObject("torch.distributed.checkpoint.metadata.ChunkStorageMetadata");
      pickle_.String("offsets");
      Size(metadata_.chunks.start(i));
      pickle_.String("sizes");
      Size(metadata_.chunks.count(i));
      EndObject();
    }
    pickle_.Appends();
    EndObject();
  }

  // TensorProperties in the form of its __getstate__: (dtype, layout, requires_grad, memory format, pin_memory). Every
  // torch since 2.0 accepts this tuple.
  void EncodeProperties(const DcpTensor& tensor) {
    pickle_.Global("torch.distributed.checkpoint.metadata.TensorProperties");
    pickle_.EmptyTuple();
    pickle_.NewObject();
    pickle_.Mark();
    pickle_.Global(absl::StrCat("torch.", std::string(DTypeName(tensor.dtype))));
    Call("torch.serialization._get_layout", [this] { pickle_.String("torch.strided"); });
    pickle_.Bool(false);
    Call("torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING", [this] { pickle_.Integer(0); });
    pickle_.Bool(false);
    pickle_.Tuple();
    pickle_.Build();
  }

  // name -> path. Indices into lists are integers: their type decides whether torch creates a list or a dict.
  void EncodePath(const DcpEntry& entry) {
    pickle_.String(entry.name());
    pickle_.Mark();
    for (const DcpEntry::PathElement& element : entry.path()) {
      int64_t index = 0;
      if (element.is_index && absl::SimpleAtoi(element.name, &index)) {
        pickle_.Integer(index);
      } else {
        pickle_.String(element.name);
      }
    }
    pickle_.Tuple();
  }

  // MetadataIndex -> _StorageInfo, for each chunk or for the one value. torch hashes fqn and offset; `index` is a hint.
  void EncodeStorage(const DcpEntry& entry) {
    if (!entry.is_tensor()) {
      BeginObject("torch.distributed.checkpoint.metadata.MetadataIndex");
      pickle_.String("fqn");
      pickle_.String(entry.name());
      pickle_.String("index");
      pickle_.None();
      EndObject();
      return EncodeSlice(metadata_.chunks.slices()[entry.slice()]);
    }
    const DcpTensor& tensor = metadata_.tensors[entry.tensor()];
    for (uint32_t i = tensor.first_chunk; i < tensor.end_chunk; ++i) {
      BeginObject("torch.distributed.checkpoint.metadata.MetadataIndex");
      pickle_.String("fqn");
      pickle_.String(entry.name());
      pickle_.String("index");
      pickle_.Integer(i - tensor.first_chunk);
      pickle_.String("offset");
      Size(metadata_.chunks.start(i));
      EndObject();
      EncodeSlice(metadata_.chunks.slice(i));
    }
  }

  void EncodeSlice(const DcpSlice& slice) {
    BeginObject("torch.distributed.checkpoint.filesystem._StorageInfo");
    pickle_.String("relative_path");
    pickle_.String(slice.file);
    pickle_.String("offset");
    pickle_.Integer(slice.offset);
    pickle_.String("length");
    pickle_.Integer(slice.nbytes);
    EndObject();
  }

  const DcpMetadata& metadata_;
  PickleWriter pickle_;
};

}  // namespace

std::string EncodeDcpMetadata(const DcpMetadata& metadata) { return MetadataEncoder(metadata).Encode(); }

}  // namespace fsdp
