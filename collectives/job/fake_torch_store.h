// SPDX-License-Identifier: Apache-2.0
//
// FakeTorchStore: a test double of torch's TCPStore as torchrun's agent serves it, for the requests of torch_store.h.
// Like the real one it closes a connection that does not begin with validate.
#ifndef FSDP_COLLECTIVES_JOB_FAKE_TORCH_STORE_H_
#define FSDP_COLLECTIVES_JOB_FAKE_TORCH_STORE_H_

#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/base/file_descriptor.h"

namespace fsdp {

class FakeTorchStore {
 public:
  // Listens at `host`; port 0 takes any free one. Aborts if it cannot.
  explicit FakeTorchStore(const std::string& host = "127.0.0.1", int port = 0);
  ~FakeTorchStore();

  int port() const { return port_; }
  void Set(const std::string& key, const std::string& value);
  // Empty if the key is not set.
  std::string Get(const std::string& key);

 private:
  struct Connection {
    FileDescriptor socket;
    bool is_validated = false;
    std::string input = {};
    std::vector<std::string> waits = {};  // keys
  };

  void Serve();
  // Returns false if the connection must be closed.
  bool Read(Connection& connection);
  // Handles one request if `input` has a whole one.
  bool HandleRequest(Connection& connection, bool* handled);
  void AnswerWaits();

  FileDescriptor listener_;
  FileDescriptor stop_;
  int port_ = 0;
  std::mutex mutex_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
  std::list<Connection> connections_;          // used by the thread only
  std::thread thread_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_FAKE_TORCH_STORE_H_
