#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <exception>

#include "core/error.h"
#include "core/hdf5.h"

namespace kvsim::hdf5 {
namespace {

constexpr rlim_t kMostCpuSeconds = 5;  // damaged lengths can make the library loop for ever

/// Never returns. A crash ends this process quietly: no core file, none of the parent's handlers,
/// and no words of the C library.
[[noreturn]] void run_child(const std::string& path,
                            const std::function<void(const File&)>& visit) {
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const rlimit processor{kMostCpuSeconds, kMostCpuSeconds};
  ::setrlimit(RLIMIT_CPU, &processor);
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU}) {
    std::signal(signal, SIG_DFL);
  }
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) ::dup2(nowhere, STDERR_FILENO);
  try {
    visit(File::open(path));
  } catch (const std::exception&) {
    // The parent will meet the same error and report it.
  }
  ::_exit(0);
}

}  // namespace

File open_probed(const std::string& path, const std::function<void(const File&)>& visit) {
  const pid_t child = ::fork();
  if (child == 0) run_child(path, visit);
  int status = 0;
  pid_t ended = -1;
  // Without a child (no processes left, say) the file is read unprobed.
  do {
    ended = child > 0 ? ::waitpid(child, &status, 0) : -1;
  } while (ended < 0 && errno == EINTR && child > 0);
  if (ended == child && child > 0 && WIFSIGNALED(status)) {
    if (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL) {
      fail<RuntimeError>("{}: damaged: the HDF5 library does not come to an end on it", path);
    }
    fail<RuntimeError>("{}: damaged: the HDF5 library crashes on it (signal {})", path,
                       WTERMSIG(status));
  }
  return File::open(path);
}

}  // namespace kvsim::hdf5
