// A program ended by a signal leaves no temporary file behind, and dies of the signal.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/sim/program.h"

namespace kvsim {
namespace {

using testing::TemporaryFolder;

std::ptrdiff_t files_of(const TemporaryFolder& folder) {
  const std::filesystem::directory_iterator begin(folder.path());
  return std::distance(begin, std::filesystem::directory_iterator());
}

/// Starts `kvsim trace synth -o FOLDER/t.h5`, a long one, with a limit on the size of files.
pid_t start_synth(const TemporaryFolder& folder, rlim_t most_bytes) {
  const std::string output = folder.file("t.h5");
  const pid_t child = ::fork();
  if (child != 0) return child;
  const rlimit none{0, 0};
  const rlimit size{most_bytes, most_bytes};
  ::setrlimit(RLIMIT_CORE, &none);
  ::setrlimit(RLIMIT_FSIZE, &size);
  ::execl(KVSIM_PROGRAM, KVSIM_PROGRAM, "trace", "synth", "-o", output.c_str(), "--prompt-tokens",
          "200000", "--decode-steps", "64", static_cast<char*>(nullptr));
  ::_exit(127);
}

/// The signal that ended the child, 0 if it ended by itself.
int signal_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

void wait_for_file(const TemporaryFolder& folder) {
  for (int i = 0; i < 3000 && files_of(folder) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  REQUIRE(files_of(folder) == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // well into the work
}

TEST_CASE("signals that end the program take its temporary file along") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const TemporaryFolder folder;
    const pid_t child = start_synth(folder, RLIM_INFINITY);
    REQUIRE(child > 0);
    wait_for_file(folder);
    ::kill(child, signal);
    CHECK(signal_of(child) == signal);
    CHECK(files_of(folder) == 0);
  }
}

TEST_CASE("a limit on the size of files leaves no part of one") {
  const TemporaryFolder folder;
  const pid_t child = start_synth(folder, rlim_t{1} << 20);
  REQUIRE(child > 0);
  CHECK(signal_of(child) == SIGXFSZ);
  CHECK(files_of(folder) == 0);
}

}  // namespace
}  // namespace kvsim
