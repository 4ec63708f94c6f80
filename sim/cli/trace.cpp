// kvsim trace: looks at, checks, imports and makes trace files.

#include <fmt/format.h>

#include "core/error.h"
#include "sim/cli/command_line.h"
#include "sim/cli/trace_verb.h"

namespace kvsim {

Registry<Verb>& trace_verb_registry() {
  static Registry<Verb> registry("trace verb");
  return registry;
}

namespace {

void run(const std::vector<std::string>& words) {
  const auto& registry = trace_verb_registry();
  if (words.empty()) {
    fail<UsageError>("nothing to do, expected one of: {}", fmt::join(registry.names(), ", "));
  }
  if (words[0] == "-h" || words[0] == "--help") {
    std::string text = "kvsim trace VERB ...   (kvsim trace VERB -h shows a verb's options)\n\n";
    for (const std::string& name : registry.names()) {
      text += fmt::format("  {:<8}  {}\n", name, registry.at(name).summary);
    }
    return print_text(text);
  }
  registry.at(words[0]).run({words.begin() + 1, words.end()});
}

KVSIM_REGISTER_VERB("trace", {"look at, check, import and make trace files", run});

}  // namespace
}  // namespace kvsim
