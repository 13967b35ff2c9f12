// SPDX-License-Identifier: Apache-2.0
//
// ByteBudget: a bound on the bytes that concurrent workers hold at once, such as staging buffers on their way to a
// disk. Requests are granted in the order in which they came, so a large one is not starved by small ones. A request
// larger than the whole limit waits until nothing is held and is then granted alone, so it is slow but never stuck.
// Thread-safe.
//
//   ByteBudget::Lease lease = budget.Acquire(tile.size());   // blocks; returned when `lease` goes
#ifndef FSDP_BASE_BYTE_BUDGET_H_
#define FSDP_BASE_BYTE_BUDGET_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

namespace fsdp {

class ByteBudget {
 public:
  // Bytes that are held until this goes. Must not outlive the budget.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}
    Lease& operator=(Lease&& other) noexcept {
      if (this != &other) {
        Return();
        budget_ = std::exchange(other.budget_, nullptr);
        nbytes_ = std::exchange(other.nbytes_, 0);
      }
      return *this;
    }
    ~Lease() { Return(); }

    int64_t nbytes() const { return nbytes_; }

    // Gives the bytes back early.
    void Return();

   private:
    friend class ByteBudget;
    Lease(ByteBudget* budget, int64_t nbytes) : budget_(budget), nbytes_(nbytes) {}

    ByteBudget* budget_ = nullptr;
    int64_t nbytes_ = 0;
  };

  // Precondition: limit_bytes >= 0.
  explicit ByteBudget(int64_t limit_bytes);

  // Blocks until `nbytes` fit beside what is held. A thread that holds a lease while it asks for another can wait for
  // itself; take one lease for all that is needed. Precondition: nbytes >= 0.
  Lease Acquire(int64_t nbytes);

  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t held_bytes() const;
  int64_t peak_held_bytes() const;

 private:
  void Release(int64_t nbytes);

  const int64_t limit_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  int64_t held_ = 0;
  int64_t peak_ = 0;
  uint64_t next_ticket_ = 0;  // of the next request
  uint64_t turn_ = 0;         // the ticket that is granted next
};

}  // namespace fsdp

#endif  // FSDP_BASE_BYTE_BUDGET_H_
