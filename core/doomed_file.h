#pragma once

#include <string>

namespace kvsim {

/// A file that is deleted when a signal ends the program (Ctrl-C, kill, a limit of file size or CPU
/// time), where no destructor runs. The program then still dies of the signal.
class DoomedFile {
 public:
  explicit DoomedFile(const std::string& path);
  DoomedFile(DoomedFile&& other) noexcept;
  DoomedFile(const DoomedFile&) = delete;
  DoomedFile& operator=(const DoomedFile&) = delete;
  DoomedFile& operator=(DoomedFile&&) = delete;
  /// The file stays from now on.
  ~DoomedFile();

 private:
  int slot_;  // -1: moved from
};

}  // namespace kvsim
