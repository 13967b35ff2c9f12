// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cudnn/cudnn_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

// Sets `function` to the library's `name`; records the first name that is missing.
template <typename Function>
void Find(void* library, const char* name, Function& function, std::string& absent) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && absent.empty()) absent = name;
}

// cuDNN 9 writes 9.15.1 as 91501.
std::string VersionText(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

std::string CudnnLibrary::Version() const { return VersionText(get_version()); }

absl::Status CudnnLibrary::StatusOf(cudnn::Status status, const std::string& call) const {
  if (status == cudnn::kSuccess) return absl::OkStatus();
  char message[512] = "";
  get_last_error_string(message, sizeof(message));
  message[sizeof(message) - 1] = '\0';
  const bool is_unsupported = status / 1000 == cudnn::kNotSupported / 1000;
  return absl::Status(is_unsupported ? absl::StatusCode::kUnimplemented : absl::StatusCode::kInternal,
                      absl::StrCat("cuDNN ", Version(), ": ", call, ": ", get_error_string(status),
                                   message[0] == '\0' ? "" : ": ", message));
}

absl::StatusOr<CudnnLibrary> LoadCudnnFrom(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return absl::NotFoundError(absl::StrCat(path, " was not found: ", why != nullptr ? why : "no reason given"));
  }
  CudnnLibrary cudnn;
  std::string absent;
  Find(library, "cudnnGetVersion", cudnn.get_version, absent);
  Find(library, "cudnnGetErrorString", cudnn.get_error_string, absent);
  Find(library, "cudnnGetLastErrorString", cudnn.get_last_error_string, absent);
  Find(library, "cudnnCreate", cudnn.create, absent);
  Find(library, "cudnnDestroy", cudnn.destroy, absent);
  Find(library, "cudnnSetStream", cudnn.set_stream, absent);
  Find(library, "cudnnBackendCreateDescriptor", cudnn.create_descriptor, absent);
  Find(library, "cudnnBackendDestroyDescriptor", cudnn.destroy_descriptor, absent);
  Find(library, "cudnnBackendFinalize", cudnn.finalize, absent);
  Find(library, "cudnnBackendSetAttribute", cudnn.set_attribute, absent);
  Find(library, "cudnnBackendGetAttribute", cudnn.get_attribute, absent);
  Find(library, "cudnnBackendExecute", cudnn.execute, absent);
  if (!absent.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has no ", absent, ": it is no cuDNN 9"));
  }
  if (cudnn.get_version() < cudnn::kOldestVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is cuDNN ", cudnn.Version(), ", older than ", VersionText(cudnn::kOldestVersion)));
  }
  return cudnn;
}

}  // namespace fsdp
