#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <exception>
#include <fstream>
#include <new>

#include "core/error.h"
#include "core/hdf5.h"

namespace kvsim::hdf5 {
namespace {

// Damaged lengths make the library loop for ever or ask for any amount of memory.
constexpr rlim_t kMostCpuSeconds = 5;
constexpr rlim_t kMostMemoryBytes = rlim_t{1} << 30;  // besides what the process has already
constexpr int kOutOfMemory = 3;                       // exit status of the child

void limit(decltype(RLIMIT_CPU) resource, rlim_t value) {
  const rlimit both{value, value};
  ::setrlimit(resource, &both);
}

void limit_memory() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  if (pages == 0) return;
  limit(RLIMIT_AS, pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + kMostMemoryBytes);
}

herr_t exit_without_memory(unsigned, const H5E_error2_t* error, void*) {
  const bool no_memory = error->min_num == H5E_NOSPACE || error->min_num == H5E_CANTALLOC;
  if (error->maj_num == H5E_RESOURCE && no_memory) ::_exit(kOutOfMemory);
  return 0;
}

/// The library calls this for every call that fails.
herr_t look_for_memory(hid_t stack, void*) {
  return H5Ewalk2(stack, H5E_WALK_UPWARD, exit_without_memory, nullptr);
}

/// Never returns. A crash ends this process quietly: no core file, none of the parent's handlers,
/// and no words of the C library.
[[noreturn]] void run_child(const std::string& path,
                            const std::function<void(const File&)>& visit) {
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, kMostCpuSeconds);
  limit_memory();
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU}) {
    std::signal(signal, SIG_DFL);
  }
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) ::dup2(nowhere, STDERR_FILENO);
  try {
    const File file = File::open(path);
    H5Eset_auto2(H5E_DEFAULT, look_for_memory, nullptr);
    visit(file);
  } catch (const std::bad_alloc&) {
    ::_exit(kOutOfMemory);
  } catch (const std::exception&) {
    // The parent will meet the same error and report it.
  }
  ::_exit(0);
}

/// The child's status as of waitpid, 0 if there is none.
int wait_for(pid_t child) {
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return 0;
  }
  return status;
}

}  // namespace

File open_probed(const std::string& path, const std::function<void(const File&)>& visit) {
  const pid_t child = ::fork();
  if (child == 0) run_child(path, visit);
  const int status = wait_for(child);  // without a child (no processes left, say) there is no probe
  if (WIFEXITED(status) && WEXITSTATUS(status) == kOutOfMemory) {
    fail<RuntimeError>("{}: damaged: the HDF5 library asks for more than {} bytes to open it", path,
                       kMostMemoryBytes);
  }
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    if (signal == SIGXCPU || signal == SIGKILL) {
      fail<RuntimeError>("{}: damaged: the HDF5 library does not come to an end on it", path);
    }
    fail<RuntimeError>("{}: damaged: the HDF5 library crashes on it (signal {})", path, signal);
  }
  return File::open(path);
}

}  // namespace kvsim::hdf5
