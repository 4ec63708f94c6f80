#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "core/error.h"
#include "sim/cli/command_line.h"
#include "sim/cli/verb.h"
#include "sim/cli/version.h"

namespace kvsim {
namespace {

constexpr int kSuccess = 0;
constexpr int kRunTimeFailure = 1;
constexpr int kWrongUsage = 2;

void print_verbs() {
  std::string text =
      "kvsim: sparse decode attention, replayed exactly and costed on GPUs and accelerators\n\n"
      "usage: kvsim VERB ...   (kvsim VERB -h shows a verb's options)\n\n";
  std::size_t width = 0;
  for (const std::string& name : verb_registry().names()) width = std::max(width, name.size());
  for (const std::string& name : verb_registry().names()) {
    text += fmt::format("  {:<{}}  {}\n", name, width, verb_registry().at(name).summary);
  }
  print_text(text);
}

void run(const std::vector<std::string>& words) {
  if (words.empty() || words[0] == "-h" || words[0] == "--help") return print_verbs();
  if (words[0] == "--version") {
    return print_text(fmt::format("kvsim {} (commit {})\n", version(), commit()));
  }
  verb_registry().at(words[0]).run({words.begin() + 1, words.end()});
}

/// One line on standard error: `kvsim replay: what is wrong`. Never returns: after a write that
/// failed (a full disk) libhdf5 crashes when it cleans up at a usual exit. All output is flushed.
[[noreturn]] void end_with(const std::vector<std::string>& words, std::string message, int status) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  const bool has_verb = !words.empty() && !words[0].empty() && words[0][0] != '-';
  const auto names = verb_registry().names();
  const bool known = has_verb && std::find(names.begin(), names.end(), words[0]) != names.end();
  fmt::print(stderr, "kvsim{}: {}\n", known ? " " + words[0] : "", message);
  std::quick_exit(status);
}

}  // namespace
}  // namespace kvsim

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    kvsim::run(words);
    return kvsim::kSuccess;
  } catch (const kvsim::UsageError& error) {
    kvsim::end_with(words, error.what(), kvsim::kWrongUsage);
  } catch (const std::bad_alloc&) {
    kvsim::end_with(words, "not enough memory; replay fewer layers (--layers) or steps (--steps)",
                    kvsim::kRunTimeFailure);
  } catch (const std::exception& error) {
    kvsim::end_with(words, error.what(), kvsim::kRunTimeFailure);
  }
}
