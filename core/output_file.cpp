#include "core/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

std::string resolve_links(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_symlink(path, ignored)) return path;
  const fs::path real = fs::canonical(path, ignored);
  return ignored ? path : real.string();
}

/// Creates an empty file with a name nobody else uses, so two writers of one target never meet.
std::string create_temporary(const std::string& path, const fs::path& target) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string name =
        fmt::format(".{}.{}.{}.tmp", target.filename().string(), ::getpid(), attempt);
    std::string temporary = (target.parent_path() / name).string();
    const int descriptor = ::open(temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
      ::close(descriptor);
      return temporary;
    }
    if (errno != EEXIST) {
      fail<RuntimeError>("{}: cannot write here: {}", path, std::strerror(errno));
    }
  }
  fail<RuntimeError>("{}: cannot find a free temporary name beside it", path);
}

}  // namespace

OutputFile::OutputFile(std::string path, bool force)
    : path_(std::move(path)), target_(resolve_links(path_)), force_(force) {
  if (path_.empty()) fail<RuntimeError>("the name of the output file is empty");
  refuse_existing();
  temporary_ = create_temporary(path_, target_);
  doomed_.emplace(temporary_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, std::string())),
      force_(other.force_),
      doomed_(std::move(other.doomed_)) {
  other.doomed_.reset();
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void refuse_input_as_output(const std::string& output, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code ignored;
    if (fs::equivalent(input, output, ignored)) {
      fail<RuntimeError>("{}: is the input {}, expected another file to write to", output, input);
    }
  }
}

void OutputFile::refuse_existing() const {
  std::error_code ignored;
  const fs::file_status status = fs::status(target_, ignored);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status)) fail<RuntimeError>("{}: is a folder, expected a file name", path_);
  if (!fs::is_regular_file(status)) {
    fail<RuntimeError>("{}: is no regular file, it would be replaced", path_);
  }
  if (!force_) fail<RuntimeError>("{}: exists already; --force overwrites it", path_);
}

void OutputFile::commit() {
  KVSIM_CHECK(!temporary_.empty());
  refuse_existing();
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail<RuntimeError>("{}: cannot rename the finished file to it: {}", path_,
                       std::strerror(errno));
  }
  doomed_.reset();
  temporary_.clear();
}

void write_text_file(const std::string& path, const std::string& text, bool force) {
  OutputFile file(path, force);
  std::ofstream stream(file.temporary(), std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) fail<RuntimeError>("{}: cannot write {} bytes", path, text.size());
  file.commit();
}

}  // namespace kvsim
