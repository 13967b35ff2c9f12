// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/cuda/fake_nccl_round.h"

#include <cstdint>

#include "fsdp/base/check.h"
#include "fsdp/collectives/host/reduce_rows.h"
#include "fsdp/cuda/emulator/device_memory.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp::fake_nccl {
DType DTypeOf(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return DType::kFloat64;
    case ncclFloat32:
      return DType::kFloat32;
    case ncclFloat16:
      return DType::kFloat16;
    case ncclBfloat16:
      return DType::kBFloat16;
    case ncclInt64:
      return DType::kInt64;
    case ncclInt32:
      return DType::kInt32;
    default:
      return DType::kUInt8;
  }
}

namespace {

// The pointers are the emulator's device addresses, which the host must not use directly.
template <typename T>
T* View(T* data) {
  return EmulatedMemory::Get().KernelView(data);
}

// row[i] * factor, rounded to the dtype before the sum, as ncclRedOpCreatePreMulSum specifies.
std::vector<std::byte> Multiplied(DType dtype, const std::byte* row, size_t count, double factor) {
  const auto n = static_cast<int64_t>(count);
  std::vector<double> wide(count);
  std::vector<std::byte> product(count * static_cast<size_t>(SizeOf(dtype)));
  Check(Convert(dtype, row, DType::kFloat64, wide.data(), n).ok(), "a dtype that is reduced");
  for (double& value : wide) value *= factor;
  Check(Convert(DType::kFloat64, wide.data(), dtype, product.data(), n).ok(), "a dtype that is reduced");
  return product;
}

std::vector<std::byte> Reduced(const Round& round, const Task& mine, size_t first) {
  const DType dtype = DTypeOf(mine.type);
  const size_t width = static_cast<size_t>(SizeOf(dtype));
  std::vector<std::vector<std::byte>> products;
  std::vector<const std::byte*> rows;
  // std::map iterates in the order of ranks, so the sums have the host backends' bits.
  for (const auto& [rank, task] : round.tasks) {
    const std::byte* row = static_cast<const std::byte*>(View(task.send)) + first * width;
    if (mine.reduction > ncclAvg) {
      products.push_back(Multiplied(dtype, row, mine.count, mine.factor));
      row = products.back().data();
    }
    rows.push_back(row);
  }
  const ReduceOp op = mine.reduction == ncclMax   ? ReduceOp::kMax
                      : mine.reduction == ncclMin ? ReduceOp::kMin
                                                  : ReduceOp::kSum;
  std::vector<std::byte> result(mine.count * width);
  ReduceRows(dtype, op, {.rows = rows, .destination = result.data(), .numel = static_cast<int64_t>(mine.count)});
  return result;
}

}  // namespace

std::vector<std::byte> Result(const Round& round, int rank) {
  const Task& mine = round.tasks.at(rank);
  if (mine.op == Op::kReduceScatter) return Reduced(round, mine, static_cast<size_t>(rank) * mine.count);
  if (mine.op == Op::kAllReduce) return Reduced(round, mine, 0);
  std::vector<std::byte> result;
  for (const auto& [r, task] : round.tasks) {
    // Only the root's bytes, else all ranks' in order: an all_gather.
    if (mine.op == Op::kBroadcast && r != mine.root) continue;
    const auto* bytes = static_cast<const std::byte*>(View(task.send));
    result.insert(result.end(), bytes, bytes + task.count * static_cast<size_t>(SizeOf(DTypeOf(task.type))));
  }
  return result;
}

void Task::FindPlaces(const Windows& windows, int rank) {
  if (op == Op::kBroadcast) return;  // NCCL has no symmetric one
  send_place = windows.Find(rank, send);
  receive_place = windows.Find(rank, receive);
  const auto forget_offset = [](Place& place) {
    if (place.is_in_window()) place = {.window = 0};
  };
  if (op == Op::kAllGather) forget_offset(send_place);
  if (op == Op::kReduceScatter) forget_offset(receive_place);
}

}  // namespace fsdp::fake_nccl
