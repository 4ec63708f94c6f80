#pragma once

#include <filesystem>
#include <string>

#include "sim/json.h"

namespace kvsim::testing {

/// A kvsim.replay/1 document of dense, topk and santa-sys with a GPU, two accelerators and an LLM.
/// Its numbers are made up.
Json small_document();

/// A folder that is deleted with its content.
class Folder {
 public:
  Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder();

  std::string path(const std::string& name) const { return (path_ / name).string(); }
  std::size_t files() const;
  /// Writes `content` to `name` and returns its path.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

std::string read_bytes(const std::string& path);

/// `path` with the document as JSON, or as a run file.
void write_run_file(const std::string& path, const Json& document);

}  // namespace kvsim::testing
