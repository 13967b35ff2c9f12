// SPDX-License-Identifier: Apache-2.0
//
// BackgroundUploader: the checkpoints of a run to an object store, in a thread of one rank. Nothing waits for it, no
// save and no collective, so a slow store costs a run nothing but the age of its remote copies:
//
//   save      |step 10|        |step 20|        |step 30|
//   upload            |== step 10 ==============| |== step 30 ====|        step 20 is left out, and this is said
//
// One upload at a time; of the steps that are saved meanwhile the newest is next. A failed upload is said too, and the
// next step is tried. Used by one thread; `say` is called on the uploader's.
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

    // Called with a sentence for people about each step: uploaded, failed, left out. May be empty.
    std::function<void(const std::string& sentence)> say = {};
  };

  // Uploads to `run` of `store`.
  BackgroundUploader(std::unique_ptr<ObjectStore> store, std::string run, Options options);

  // Breaks off the upload in progress at its next read, and leaves out the step that waits: call Finish before.
  ~BackgroundUploader();
  BackgroundUploader(const BackgroundUploader&) = delete;
  BackgroundUploader& operator=(const BackgroundUploader&) = delete;

  // The committed checkpoint at `path` is next. Never blocks. The directory is locked while it is uploaded, so that
  // retention leaves it to its next call; before that it must not be deleted.
  void Add(const std::string& path);

  // Blocks until the step that was added last is there, or has failed: then returns its error. OK without any.
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
  std::string next_;  // the path that waits; empty: none
  bool is_uploading_ = false;
  bool is_closing_ = false;
  absl::Status last_;  // of the last upload that ended

  std::thread worker_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_BACKGROUND_UPLOADER_H_
