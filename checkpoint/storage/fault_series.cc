// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/fault_series.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

using Kind = StorageFault::Kind;

constexpr int kCrashes = 5;
constexpr int kErrors = 4;
constexpr std::array<const char*, kCrashes + kErrors> kNames = {"killed",
                                                                "killed, un-synced names and contents lost",
                                                                "killed, un-synced names lost",
                                                                "killed, un-synced contents lost",
                                                                "killed, every other un-synced sector lost",
                                                                "EIO",
                                                                "ENOSPC",
                                                                "ENOSPC from then on",
                                                                "EROFS from then on"};

// Counts the injected faults, and prints the counts when the program ends.
class Tally {
 public:
  ~Tally() {
    int64_t all = 0;
    for (const int64_t count : counts_) all += count;
    std::printf("storage faults injected: %lld\n", static_cast<long long>(all));
    for (size_t kind = 0; kind < counts_.size(); ++kind) {
      std::printf("%8lld  %s\n", static_cast<long long>(counts_[kind]), kNames[kind]);
    }
  }

  void Add(Kind kind) { ++counts_[static_cast<size_t>(kind)]; }

 private:
  std::array<int64_t, kCrashes + kErrors> counts_ = {};
};

Tally& InjectedFaults() {
  // Destroyed at exit, which prints. Tests inject faults from one thread, so the counts need no lock.
  static Tally tally;
  return tally;
}

}  // namespace

void StorageFault::Arm(FaultFileSystem& files) const {
  InjectedFaults().Add(kind);
  if (is_crash()) return files.CrashAt(operation);
  switch (kind) {
    case Kind::kIoError:
      return files.FailAt(operation, absl::ErrnoToStatus(EIO, "test"));
    case Kind::kNoSpace:
      return files.FailAt(operation, absl::ErrnoToStatus(ENOSPC, "test"));
    case Kind::kDiskFull:
      return files.FillDiskAt(operation);
    default:
      return files.MakeReadOnlyAt(operation);
  }
}

void StorageFault::Strike(FaultFileSystem& files) const {
  using Loss = FaultFileSystem::Loss;
  constexpr std::array<Loss, kCrashes> kLosses = {Loss::kNothing, Loss::kNamesAndData, Loss::kNames, Loss::kData,
                                                  Loss::kSectors};
  if (is_crash()) files.LosePower(kLosses[static_cast<size_t>(kind)]);
}

std::string StorageFault::ToString() const {
  return absl::StrCat(kNames[static_cast<size_t>(kind)], " at operation ", operation);
}

std::vector<StorageFault> FaultSeries(int64_t operations) {
  const bool all = std::getenv("EVERY_FAULT") != nullptr;
  std::vector<StorageFault> series;
  // Without EVERY_FAULT the kinds rotate with k: neighbouring operations get different kinds, and all kinds occur
  // early. A stride of 2 among 5 kinds of crashes never repeats one at the same operation.
  // k = operations + 1 is only a crash after the last operation: an error needs an operation to fail.
  for (int64_t k = 1; k <= operations + 1; ++k) {
    for (int i = 0; i < (all ? kCrashes : 2); ++i) {
      series.push_back({static_cast<Kind>((k + 2 * i) % kCrashes), k});
    }
    for (int i = 0; i < (all ? kErrors : 1) && k <= operations; ++i) {
      series.push_back({static_cast<Kind>(kCrashes + (k + i) % kErrors), k});
    }
  }
  return series;
}

}  // namespace fsdp
