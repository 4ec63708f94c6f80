#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/doomed_file.h"

namespace kvsim {

/// A file that appears whole or not at all: it is written under a temporary name beside its target
/// and renamed by `commit`. Without a commit the destructor, or a signal that ends the program,
/// deletes the temporary.
class OutputFile {
 public:
  /// Creates the empty temporary. Throws RuntimeError when the target exists and `force` is not
  /// set, when it is no regular file, or when its folder does not exist or cannot be written to.
  explicit OutputFile(std::string path, bool force = false);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  /// Where to write: open this name, write, close, then commit.
  const std::string& temporary() const { return temporary_; }
  /// The target's name, for messages.
  const std::string& path() const { return path_; }
  /// Renames the temporary to the target. Throws RuntimeError if a target appeared meanwhile and
  /// `force` is not set, or if the rename fails.
  void commit();

 private:
  void refuse_existing() const;

  std::string path_;
  std::string target_;     // path_ with symbolic links resolved
  std::string temporary_;  // empty once committed or moved from
  bool force_ = false;
  std::optional<DoomedFile> doomed_;  // the temporary, until it is committed
};

/// Throws RuntimeError when `output` is one of the files that are read, forced or not.
void refuse_input_as_output(const std::string& output, const std::vector<std::string>& inputs);

/// Writes `text` to `path` through an OutputFile.
void write_text_file(const std::string& path, const std::string& text, bool force);

}  // namespace kvsim
