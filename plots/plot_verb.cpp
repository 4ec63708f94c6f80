// kvsim plot: draws a result.

#include <fmt/format.h>

#include <boost/program_options/value_semantic.hpp>
#include <cstdio>

#include "core/error.h"
#include "plots/gnuplot.h"
#include "plots/plot.h"
#include "sim/cli/command_line.h"
#include "sim/cli/verb.h"
#include "sim/cli/version.h"

namespace kvsim {
namespace {

namespace po = boost::program_options;

CommandLine make_command_line() {
  std::string kinds = "Kinds:";
  for (const std::string& name : plot_registry().names()) {
    kinds += fmt::format("\n  {:<12}  {}", name, plot_registry().at(name).summary);
  }
  CommandLine line("plot RESULT --kind K -o x.svg|x.png",
                   "Draws the result of a replay.\n\n" + kinds);
  line.take_positional("result",
                       "RESULT  run file of kvsim replay -o, or its --json output in a file");
  line.own()("kind", po::value<std::string>()->value_name("K"), "what to draw, see above")(
      "output,o", po::value<std::string>()->value_name("FILE"),
      "picture to write; .svg or .png says which");
  return line;
}

std::string result_option(const CommandLine& line) {
  const auto results = line.list("result");
  if (results.size() != 1) {
    fail<UsageError>("{} results given, expected one RESULT", results.size());
  }
  return results.front();
}

void run(const std::vector<std::string>& words) {
  CommandLine line = make_command_line();
  if (!line.parse(words)) return;
  const std::string result = result_option(line);
  const std::string kind = line.text("kind");
  if (kind.empty()) {
    fail<UsageError>("no --kind given, expected one of: {}",
                     fmt::join(plot_registry().names(), ", "));
  }
  const Plot& plot = plot_registry().at(kind);
  const std::string path = line.text("output");
  if (path.empty()) throw UsageError("no -o FILE.svg or FILE.png given");
  const ImageFormat format = image_format(path);

  OutputFile output(path, line.force());  // refuses before the work, not after
  if (const std::string problem = gnuplot_problem(); !problem.empty()) throw RuntimeError(problem);
  const Document document(result);
  plot.draw(document).write(std::move(output), format);
  if (line.json()) {
    print_document(Json{{"schema", "kvsim.plot/1"},
                        {"version", version()},
                        {"commit", commit()},
                        {"kind", kind},
                        {"result", result},
                        {"output", path}});
  } else {
    fmt::print(stderr, "wrote {}\n", path);
  }
}

KVSIM_REGISTER_VERB("plot", {"draw a result as svg or png", run});

}  // namespace
}  // namespace kvsim
