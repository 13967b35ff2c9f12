// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/background_uploader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/checkpoint/object/upload.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

BackgroundUploader::BackgroundUploader(std::unique_ptr<ObjectStore> store, std::string run, Options options)
    : store_(std::move(store)), run_(std::move(run)), options_(std::move(options)), worker_([this] { Work(); }) {}

BackgroundUploader::~BackgroundUploader() {
  // Set before the lock: the upload in progress checks it without the mutex, at each read.
  is_cancelled_ = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
    next_.clear();
  }
  changed_.notify_all();
  worker_.join();
}

void BackgroundUploader::Add(const std::string& path) {
  // One waiting place: a newer step replaces the one that waits, so a slow store never builds up a backlog.
  std::string left_out;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_out = std::exchange(next_, path);
  }
  changed_.notify_all();
  // Reported without the lock: `say` may take long, or call Add.
  if (!left_out.empty()) {
    Say(absl::StrCat(left_out, " is not uploaded: ", path, " was saved before the upload in progress ended"));
  }
}

absl::Status BackgroundUploader::Finish() {
  std::unique_lock<std::mutex> lock(mutex_);
  // Both: the worker empties next_ before it sets is_uploading_, under the same lock.
  changed_.wait(lock, [&] { return next_.empty() && !is_uploading_; });
  return last_;
}

void BackgroundUploader::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !next_.empty() || is_closing_; });
    if (next_.empty()) return;
    const std::string path = std::exchange(next_, "");
    is_uploading_ = true;
    // Unlocked while uploading, so that Add never waits for the store.
    lock.unlock();
    absl::Status status = Upload(path);
    lock.lock();
    last_ = std::move(status);
    // After last_, since Finish returns last_ once no upload runs.
    is_uploading_ = false;
    changed_.notify_all();
  }
}

absl::Status BackgroundUploader::Upload(const std::string& path) {
  const absl::Time start = SteadyNow();
  const absl::StatusOr<UploadReport> report = UploadCheckpoint(PosixFileSystem(), path, *store_, run_,
                                                               {.overwrite = options_.overwrite,
                                                                .is_cancelled = [this] { return is_cancelled_.load(); },
                                                                .threads = options_.threads});
  if (!report.ok()) {
    Say(absl::StrCat("the upload of ", path, " failed: ", report.status().message()));
    return report.status();
  }
  const std::string took = absl::FormatDuration(absl::Trunc(SteadyNow() - start, absl::Milliseconds(1)));
  Say(report->sent_files > 0
          ? absl::StrCat("uploaded ", store_->UrlOf(report->step), ", ", report->sent_bytes, " bytes in ", took)
          : absl::StrCat(store_->UrlOf(report->step), " has all of ", path));
  return absl::OkStatus();
}

void BackgroundUploader::Say(const std::string& sentence) const {
  if (options_.say) options_.say(sentence);
}

}  // namespace fsdp
