// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/cli/interruption.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// The signal that came, else 0, and when. A signal handler may write them since they have no lock.
std::atomic<int> caught = 0;
std::atomic<int64_t> caught_at = 0;  // of the monotonic clock, in nanoseconds
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

// `timeout` and some schedulers send one signal twice, to the process and to its group. A second one that is meant
// comes later.
constexpr int64_t kOneSignal = 500'000'000;

// Whether CatchSignals was called; a second call would catch a second signal.
std::atomic<bool> is_catching = false;

extern "C" void Catch(int signal) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t at = now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  if (caught == 0) {
    caught_at = at;
    caught = signal;
  } else if (at - caught_at >= kOneSignal) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // delivered when this handler returns
  }
}

absl::Status CheckNotInterrupted() {
  const int signal = caught;
  return signal == 0 ? absl::OkStatus() : absl::CancelledError(absl::StrCat("interrupted by signal ", signal));
}

// A signal that is ignored, as SIGHUP under nohup, stays ignored.
void HandleSignals(void (*handler)(int)) {
  for (const int signal : kSignals) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
}

void CatchSignals() {
  if (!is_catching.exchange(true)) HandleSignals(Catch);
}

void ForgetSignals(void (*handler)(int)) {
  for (const int signal : kSignals) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == handler) std::signal(signal, SIG_DFL);
  }
}

void ReleaseSignals() {
  is_catching = false;
  ForgetSignals(Catch);
}

// The text of the InterruptionNotice that exists. A handler may only write it: it allocates nothing.
std::atomic<const std::string*> notice = nullptr;

extern "C" void NoteAndEnd(int signal) {
  if (const std::string* const text = notice.exchange(nullptr)) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text->data(), text->size());
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // delivered when this handler returns
}

class InterruptibleQueue final : public WriteQueue {
 public:
  explicit InterruptibleQueue(std::unique_ptr<WriteQueue> base) : base_(std::move(base)) {}

  absl::StatusOr<std::byte*> Buffer() override {
    FSDP_RETURN_IF_ERROR(CheckNotInterrupted());
    return base_->Buffer();
  }
  bool NeedsCopy(const std::byte* bytes) const override { return base_->NeedsCopy(bytes); }
  absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) override {
    FSDP_RETURN_IF_ERROR(CheckNotInterrupted());
    return base_->Write(offset, bytes);
  }
  absl::Status Drain() override { return base_->Drain(); }
  absl::Status Finish() override { return base_->Finish(); }

 private:
  const std::unique_ptr<WriteQueue> base_;
};

class InterruptibleFile final : public File {
 public:
  explicit InterruptibleFile(std::unique_ptr<File> base) : base_(std::move(base)) {}

  const std::string& path() const override { return base_->path(); }
  absl::StatusOr<int64_t> Size() const override { return base_->Size(); }
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override { return base_->Read(offset, out); }
  absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) override {
    FSDP_RETURN_IF_ERROR(CheckNotInterrupted());
    return base_->Write(offset, bytes);
  }
  absl::Status Reserve(int64_t nbytes) override {
    FSDP_RETURN_IF_ERROR(CheckNotInterrupted());
    return base_->Reserve(nbytes);
  }
  std::unique_ptr<WriteQueue> NewWriteQueue(int depth) override {
    return std::make_unique<InterruptibleQueue>(base_->NewWriteQueue(depth));
  }
  absl::Status Sync() override { return base_->Sync(); }
  Descriptors descriptors() const override { return base_->descriptors(); }
  bool locked() const override { return base_->locked(); }

 private:
  const std::unique_ptr<File> base_;
};

absl::StatusOr<std::unique_ptr<File>> Interruptible(absl::StatusOr<std::unique_ptr<File>> file) {
  FSDP_RETURN_IF_ERROR(file.status());
  return std::make_unique<InterruptibleFile>(*std::move(file));
}

class InterruptibleFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    FSDP_RETURN_IF_ERROR(Begin());
    return Interruptible(base_.Create(path));
  }
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path) override { return base_.Open(path); }
  absl::StatusOr<std::unique_ptr<File>> OpenToWrite(const std::string& path) override {
    FSDP_RETURN_IF_ERROR(Begin());
    return Interruptible(base_.OpenToWrite(path));
  }
  // Without a check: a removal locks too.
  absl::StatusOr<std::unique_ptr<File>> OpenLocked(const std::string& path) override {
    CatchSignals();
    return Interruptible(base_.OpenLocked(path));
  }
  absl::Status MakeDirectory(const std::string& path) override {
    FSDP_RETURN_IF_ERROR(Begin());
    return base_.MakeDirectory(path);
  }
  absl::Status RemoveDirectory(const std::string& path) override { return base_.RemoveDirectory(path); }
  absl::Status Unlink(const std::string& path) override { return base_.Unlink(path); }
  absl::Status SyncDirectory(const std::string& path) override { return base_.SyncDirectory(path); }
  absl::Status Link(const std::string& from, const std::string& to) override {
    FSDP_RETURN_IF_ERROR(Begin());
    return base_.Link(from, to);
  }
  // Names change without a check: what is whole may take its name, and what has been replaced is renamed before it is
  // removed.
  absl::Status Rename(const std::string& from, const std::string& to) override { return base_.Rename(from, to); }
  absl::Status Replace(const std::string& from, const std::string& to) override { return base_.Replace(from, to); }
  absl::Status Exchange(const std::string& a, const std::string& b) override { return base_.Exchange(a, b); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return base_.List(path); }
  bool Exists(const std::string& path) override { return base_.Exists(path); }

 private:
  // Before something is made: from now on there is something to remove.
  static absl::Status Begin() {
    FSDP_RETURN_IF_ERROR(CheckNotInterrupted());
    CatchSignals();
    return absl::OkStatus();
  }

  FileSystem& base_ = PosixFileSystem();
};

}  // namespace

Interruption::Interruption() : files_(std::make_unique<InterruptibleFileSystem>()) { caught = 0; }

Interruption::~Interruption() { ReleaseSignals(); }

FileSystem& Interruption::files() { return *files_; }

void Interruption::EndProgramIfInterrupted(const std::string& program, const std::string& output,
                                           const absl::Status& status) {
  const int signal = caught;
  if (signal == 0) return;
  // Another error may be why something is left.
  if (!status.ok() && !absl::IsCancelled(status)) PrintError("%s: %s\n", program, status.message());
  const char* const outcome = status.ok()                 ? "is complete"
                              : files_->Exists(output)    ? "is unchanged"
                              : absl::IsCancelled(status) ? "was not made, and nothing of it is left"
                                                          : "was not made";
  PrintError("%s: interrupted: %s %s\n", program, Printable(output), outcome);
  ReleaseSignals();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

InterruptionNotice::InterruptionNotice(const std::string& text)
    : text_(absl::StrCat(isatty(STDERR_FILENO) != 0 ? "\n" : "", text, "\n")) {  // behind a bar
  notice = &text_;
  HandleSignals(NoteAndEnd);
}

InterruptionNotice::~InterruptionNotice() {
  ForgetSignals(NoteAndEnd);
  notice = nullptr;
}

}  // namespace fsdp
