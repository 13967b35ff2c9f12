// SPDX-License-Identifier: Apache-2.0
//
// BackgroundUploader: uploads the checkpoints of a run to an object store, in a thread of one rank. No save and no
// collective waits for it, so a slow store only makes the remote copies older:
//
//   save      |step 10|        |step 20|        |step 30|
//   upload            |== step 10 ==============| |== step 30 ====|        step 20 is skipped, and this is reported
//
// One upload at a time; of the steps that are saved meanwhile only the newest is uploaded next. A failed upload is
// reported too, and the next step is tried. Used by one thread; `say` is called on the uploader's thread or by Add.
#ifndef FSDP_CHECKPOINT_OBJECT_BACKGROUND_UPLOADER_H_
#define FSDP_CHECKPOINT_OBJECT_BACKGROUND_UPLOADER_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "fsdp/checkpoint/object/object_store.h"

namespace fsdp {

class BackgroundUploader {
 public:
  struct Options {
    bool overwrite = false;  // UploadOptions::overwrite
    int threads = 2;         // that put files

    // Called with a sentence for people about each step: uploaded, failed, skipped. May be empty.
    std::function<void(const std::string& sentence)> say = {};
  };

  // Uploads to `run` of `store`.
  BackgroundUploader(std::unique_ptr<ObjectStore> store, std::string run, Options options);

  // Cancels the upload in progress at its next read, and skips the waiting step: call Finish before.
  ~BackgroundUploader();
  BackgroundUploader(const BackgroundUploader&) = delete;
  BackgroundUploader& operator=(const BackgroundUploader&) = delete;

  // Uploads the committed checkpoint at `path` next. Never blocks. The directory is locked during its upload, so that
  // retention postpones its deletion; it must not be deleted before that.
  void Add(const std::string& path);

  // Blocks until the step that was added last is uploaded or has failed; returns its error. OK without any step.
  absl::Status Finish();

 private:
  void Work();
  absl::Status Upload(const std::string& path);
  void Say(const std::string& sentence) const;

  const std::unique_ptr<ObjectStore> store_;
  const std::string run_;
  const Options options_;

  std::atomic<bool> is_cancelled_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  std::string next_;  // the waiting path; may be empty
  bool is_uploading_ = false;
  bool is_closing_ = false;
  absl::Status last_;  // of the last finished upload

  std::thread worker_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_BACKGROUND_UPLOADER_H_
