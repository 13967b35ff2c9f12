// SPDX-License-Identifier: Apache-2.0
//
// DcpObjects: the objects of a .metadata, taken while it is parsed and packed. There is a MetadataIndex, a _StorageInfo
// and a ChunkStorageMetadata for each tensor and rank, which would take 500 bytes as values. An object that cannot be
// taken, because the pickle uses a part of it again, stays a value: each function here reads both forms. The items of
// the ranks' plans, which Megatron-Core saves too, are taken and forgotten.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_OBJECTS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_OBJECTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_chunks.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_budget.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// The attribute `name` in the state of an object, which is a dict; nullopt if it is missing.
std::optional<PickleValue> FindAttribute(PickleValue state, std::string_view name);

// "byte 17 of the pickle: WHAT", kDataLoss.
absl::Status BrokenObject(PickleValue value, const std::string& what);

// For one pickle and one thread. Errors are kDataLoss, with the byte of the pickle, unless a function says otherwise.
class DcpObjects final : public PickleObjects {
 public:
  // A part of a tensor: its start and its counts, as numbers in DcpSizes.
  struct Chunk {
    uint32_t start = 0;
    uint32_t count = 0;
    uint32_t place = 0;  // in the pickle
  };

  // A MetadataIndex: the name of a value, or the name of a tensor and the start of a chunk.
  struct Key {
    static constexpr uint32_t kNoOffsets = UINT32_MAX;

    uint32_t name = 0;  // for Name()
    uint32_t offsets = kNoOffsets;

    bool is_chunk() const { return offsets != kNoOffsets; }
  };

  // A TensorStorageMetadata: its chunks are numbered from `first_chunk` on.
  struct Tensor {
    DType dtype = DType::kFloat32;
    uint32_t size = 0;  // DcpSizes
    uint32_t first_chunk = 0;
    uint32_t chunks = 0;
    uint32_t place = 0;  // in the pickle
  };

  // `bytes`: the pickle, which must outlive this.
  explicit DcpObjects(std::string_view bytes) : bytes_(bytes) {}
  DcpObjects(const DcpObjects&) = delete;
  DcpObjects& operator=(const DcpObjects&) = delete;

  std::optional<uint32_t> Take(PickleValue call) override;
  std::optional<uint32_t> TakeBuilt(PickleValue call, PickleValue state) override;
  int64_t place(uint32_t object) const override;
  int64_t memory() const override;

  // These read an object, taken or not.
  absl::StatusOr<uint32_t> ReadSizeList(PickleValue value);  // of DcpSizes
  absl::StatusOr<Chunk> ReadChunk(PickleValue value);
  absl::StatusOr<Key> ReadKey(PickleValue value);
  // The number of a slice. `name` is the tensor's or value's, for messages; kInvalidArgument if it was compressed.
  absl::StatusOr<uint32_t> ReadPlace(std::string_view name, PickleValue value);
  // `name` as above; kInvalidArgument for a dtype that this project does not support. Chunks that are not objects yet
  // take memory of `budget`; kResourceExhausted beyond it.
  absl::StatusOr<Tensor> ReadTensor(std::string_view name, PickleValue value, PickleBudget& budget);

  // True for a TensorStorageMetadata or a BytesStorageMetadata.
  static bool IsTensor(PickleValue value);
  static bool IsBytes(PickleValue value);

  std::string_view Name(const Key& key) const;
  const DcpSizes& sizes() const { return sizes_; }
  const DcpSlices& slices() const { return slices_; }
  Chunk chunk(uint32_t number) const { return chunks_[number]; }

  // Moves lists and slices out; the objects must not be used afterwards.
  DcpSizes TakeSizes() { return std::move(sizes_); }
  DcpSlices TakeSlices() { return std::move(slices_); }

 private:
  // The number of an object is its index in its table, with its kind in the last bits.
  enum class Kind : uint8_t { kSizes, kProperties, kChunk, kKey, kPlace, kTensor, kPlanItem };
  static constexpr int kKindBits = 3;

  // A TensorProperties.
  struct Properties {
    DType dtype = DType::kFloat32;
    uint32_t place = 0;  // in the pickle
  };

  // The state of an object that was not taken; kDataLoss if it does not have a state.
  static absl::StatusOr<PickleValue> StateOf(PickleValue object);
  // The index in the table if `value` is an object of that kind.
  static std::optional<uint32_t> Find(Kind kind, PickleValue value);
  // Adds `row` to `table` and returns its object number; nullopt if `row` is an error or the table is full.
  template <typename Row>
  static std::optional<uint32_t> Added(Kind kind, const absl::StatusOr<Row>& row, std::deque<Row>& table);

  absl::StatusOr<Chunk> MakeChunk(PickleValue object, PickleValue state);
  absl::StatusOr<Key> MakeKey(PickleValue object, PickleValue state);
  absl::StatusOr<uint32_t> MakePlace(std::string_view name, PickleValue object, PickleValue state);
  static absl::StatusOr<Properties> MakeProperties(std::string_view name, PickleValue object, PickleValue state);
  absl::StatusOr<DType> ReadDType(std::string_view name, PickleValue value) const;
  // `budget`: null means that chunks which are not consecutive in chunks_ are an error.
  absl::StatusOr<Tensor> MakeTensor(std::string_view name, PickleValue object, PickleValue state, PickleBudget* budget);

  const std::string_view bytes_;
  DcpSizes sizes_;
  DcpSlices slices_;
  std::deque<uint32_t> slice_places_;  // of slices_, in the pickle
  std::deque<Properties> properties_;
  std::deque<Chunk> chunks_;
  std::deque<Key> keys_;
  std::deque<Tensor> tensors_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_OBJECTS_H_
