#include "plots/gnuplot.h"

#include "core/error.h"

#ifdef KVSIM_HAVE_GNUPLOT
#include <fcntl.h>
#include <gnuplot-iostream.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#endif

namespace kvsim {

#ifdef KVSIM_HAVE_GNUPLOT

namespace {

constexpr const char* kNotInstalled =
    "gnuplot is not installed; on Debian and Ubuntu it is the package gnuplot-nox";

/// While it lives, writing to a process that has ended is an error and not the end of us.
class NoBrokenPipeSignal {
 public:
  NoBrokenPipeSignal() {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &before_);
  }
  NoBrokenPipeSignal(const NoBrokenPipeSignal&) = delete;
  NoBrokenPipeSignal& operator=(const NoBrokenPipeSignal&) = delete;
  ~NoBrokenPipeSignal() { sigaction(SIGPIPE, &before_, nullptr); }

 private:
  struct sigaction before_ = {};
};

/// What a process reads and writes.
class Redirections {
 public:
  Redirections() { posix_spawn_file_actions_init(&actions_); }
  Redirections(const Redirections&) = delete;
  Redirections& operator=(const Redirections&) = delete;
  ~Redirections() { posix_spawn_file_actions_destroy(&actions_); }

  void from(int descriptor) { posix_spawn_file_actions_adddup2(&actions_, descriptor, 0); }
  void messages_to(int descriptor) {
    posix_spawn_file_actions_addopen(&actions_, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, descriptor, 2);
  }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_ = {};
};

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

/// A gnuplot that is fed through a pipe and ignores the user's settings (-d).
class Process {
 public:
  Process() : messages_(std::tmpfile()) {
    std::array<int, 2> pipe{};
    if (!messages_ || ::pipe2(pipe.data(), O_CLOEXEC) != 0) {
      fail<RuntimeError>("cannot start gnuplot: {}", std::strerror(errno));
    }
    Redirections redirections;
    redirections.from(pipe[0]);
    redirections.messages_to(::fileno(messages_.get()));
    std::array<char, 8> name{"gnuplot"};
    std::array<char, 3> option{"-d"};
    const std::array<char*, 3> words{name.data(), option.data(), nullptr};
    const int status =
        ::posix_spawnp(&id_, name.data(), redirections.actions(), nullptr, words.data(), environ);
    ::close(pipe[0]);
    input_ = pipe[1];
    if (status != 0) {
      ::close(input_);
      if (status == ENOENT) throw RuntimeError(kNotInstalled);
      fail<RuntimeError>("cannot start gnuplot: {}", std::strerror(status));
    }
  }

  /// Sends everything, closes the pipe and waits. True if gnuplot was content.
  bool run(const std::string& script) {
    {
      const NoBrokenPipeSignal quiet;
      Gnuplot stream(::fdopen(input_, "w"));  // closes it
      stream << script << std::flush;
    }
    int status = 0;
    while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  /// What gnuplot wrote to standard error, in one line.
  std::string messages() {
    std::rewind(messages_.get());
    std::string text;
    for (int letter = std::fgetc(messages_.get()); letter != EOF;
         letter = std::fgetc(messages_.get())) {
      const bool space = letter == ' ' || letter == '\n' || letter == '\t';
      if (space && (text.empty() || text.back() == ' ')) continue;
      text += space ? ' ' : static_cast<char>(letter);
    }
    return text;
  }

 private:
  pid_t id_ = 0;
  int input_ = -1;
  std::unique_ptr<std::FILE, CloseFile> messages_;
};

}  // namespace

std::string gnuplot_problem() {
  try {
    Process process;
    return process.run("exit\n") ? "" : "gnuplot does not start: " + process.messages();
  } catch (const RuntimeError& error) {
    return error.what();
  }
}

void run_gnuplot(const std::string& script) {
  Process process;
  if (!process.run(script)) fail<RuntimeError>("gnuplot failed: {}", process.messages());
}

#else

std::string gnuplot_problem() {
  return "this build cannot draw: gnuplot-iostream was not found when it was configured; on Debian "
         "and Ubuntu it is the package libgnuplot-iostream-dev";
}

void run_gnuplot(const std::string&) { throw RuntimeError(gnuplot_problem()); }

#endif

}  // namespace kvsim
