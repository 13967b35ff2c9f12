// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/run_ranks.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/collectives/host/host_process_group.h"
#include "fsdp/tensor/host_device.h"

namespace fsdp {

absl::Status RunRanks(int world_size, const std::function<absl::Status(std::shared_ptr<ProcessGroup> group)>& rank_main,
                      absl::Duration timeout) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("world size ", world_size, " is below 1"));
  }
  std::vector<std::shared_ptr<Device>> devices(static_cast<size_t>(world_size));
  std::generate(devices.begin(), devices.end(), [] { return CreateHostDevice(); });
  std::mutex mutex;
  int first_returned = -1;  // guarded by mutex, like first_gave_up
  int first_gave_up = -1;   // the cause; it may return later than ranks that failed because of it
  std::vector<absl::Status> results(static_cast<size_t>(world_size));

  std::vector<std::thread> threads;
  for (std::unique_ptr<ProcessGroup>& created : CreateLocalGroups(devices, timeout)) {
    threads.emplace_back([&, group = std::shared_ptr<ProcessGroup>(std::move(created))]() mutable {
      const int rank = group->rank();
      results[rank] = rank_main(group);
      if (!results[rank].ok()) {
        group->Abort(results[rank]);
        const std::lock_guard<std::mutex> lock(mutex);
        first_gave_up = static_cast<const HostProcessGroup&>(*group).first_rank_to_give_up();
        first_returned = first_returned < 0 ? rank : first_returned;
      }
      group.reset();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first_returned < 0) {
    return absl::OkStatus();
  }
  const int failed = results[first_gave_up].ok() ? first_returned : first_gave_up;
  return Annotate(results[failed], absl::StrCat("rank ", failed, " of ", world_size));
}

}  // namespace fsdp
