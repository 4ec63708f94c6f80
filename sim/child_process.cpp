#include "sim/child_process.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";

/// Starts the program with its standard output going to `write_end`.
pid_t start(const std::vector<std::string>& arguments, const std::array<int, 2>& ends) {
  std::vector<std::string> words{"kvsim"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  pid_t child = 0;
  const int status = posix_spawn(&child, kThisProgram, &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (status != 0) {
    close(ends[0]);
    fail<RuntimeError>("cannot start another process: {}", std::strerror(status));
  }
  return child;
}

std::string read_all(int end) {
  std::string text;
  std::array<char, 1 << 16> buffer{};
  while (true) {
    const ssize_t count = read(end, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  close(end);
  return text;
}

}  // namespace

std::string run_this_program(const std::vector<std::string>& arguments) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) fail<RuntimeError>("cannot open a pipe: {}", std::strerror(errno));
  const pid_t child = start(arguments, ends);
  std::string text = read_all(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    fail<RuntimeError>("a process was ended by signal {}", WTERMSIG(status));
  }
  if (WEXITSTATUS(status) != 0) {
    fail<RuntimeError>("a process exited with status {}", WEXITSTATUS(status));
  }
  return text;
}

}  // namespace kvsim
