// kvsim plot, run as a program.

#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "plots/gnuplot.h"
#include "tests/catch.h"
#include "tests/plots/small_document.h"

using namespace kvsim;
using namespace kvsim::testing;

namespace {

/// The folder of a test, with the program's last output.
class Program {
 public:
  Program() { folder.write("run.json", small_document().dump()); }

  int run(const std::string& arguments) { return run_verb("plot " + arguments); }
  int run_verb(const std::string& arguments) {
    const std::string command =
        "cd " + folder.path("") + " && " KVSIM_PROGRAM " " + arguments + " > out.txt 2> err.txt";
    const int status = std::system(command.c_str());
    out = read_bytes(folder.path("out.txt"));
    errors = read_bytes(folder.path("err.txt"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  Folder folder;
  std::string out;
  std::string errors;
};

}  // namespace

TEST_CASE("plot: wrong usage ends with 2 and what would be right") {
  Program program;
  CHECK(program.run("run.json --kind nonsense -o x.svg") == 2);
  CHECK(program.errors ==
        "kvsim plot: unknown kind of plot 'nonsense', expected one of: energy, error-bytes, "
        "error-samples, latency, speedup\n");
  CHECK(program.run("run.json -o x.svg") == 2);
  CHECK_THAT(program.errors, ContainsSubstring("error-samples, latency"));
  CHECK(program.run("run.json --kind latency") == 2);
  CHECK(program.run("run.json --kind latency -o x.pdf") == 2);
  CHECK_THAT(program.errors, ContainsSubstring("expected one of: .svg, .png"));
  CHECK(program.run("--kind latency -o x.svg") == 2);
  CHECK(program.run("run.json run.json --kind latency -o x.svg") == 2);
  CHECK(program.folder.files() == 3);  // run.json, out.txt, err.txt
  CHECK(program.run("-h") == 0);
  CHECK_THAT(program.out, ContainsSubstring("error-bytes"));
}

TEST_CASE("list plots: every kind with what it shows") {
  Program program;
  CHECK(program.run_verb("list plots") == 0);
  CHECK_THAT(program.out, ContainsSubstring("error-bytes    output error against DRAM bytes"));
  CHECK(program.run_verb("list plots --json") == 0);
  CHECK(Json::parse(program.out).at("items").size() == 5);
}

TEST_CASE("plot: files that are wrong end with 1 and leave nothing behind") {
  Program program;
  CHECK(program.run("none.h5 --kind latency -o x.svg") == 1);
  CHECK(program.run("run.json --kind latency -o none/x.svg") == 1);
  program.folder.write("bad.json", R"({"schema": "kvsim.replay/1", "methods": [{}]})");
  CHECK(program.run("bad.json --kind latency -o x.svg") == 1);
  CHECK(program.folder.files() == 4);
}

TEST_CASE("plot: overwrites with --force only") {
  if (const std::string problem = gnuplot_problem(); !problem.empty()) {
    WARN("SKIPPED: " << problem);
    return;
  }
  Program program;
  const std::string picture = program.folder.write("x.svg", "mine");
  CHECK(program.run("run.json --kind latency -o x.svg") == 1);
  CHECK_THAT(program.errors, ContainsSubstring("--force"));
  CHECK(read_bytes(picture) == "mine");
  CHECK(program.run("run.json --kind latency -o x.svg --force") == 0);
  CHECK_THAT(read_bytes(picture), ContainsSubstring("</svg>"));
  CHECK(program.out == "");
  CHECK(program.run("run.json --kind latency -o '|x y.png' --json") == 0);
  const Json said = Json::parse(program.out);
  CHECK(said.at("schema") == "kvsim.plot/1");
  CHECK(said.at("output") == "|x y.png");
  CHECK(read_bytes(program.folder.path("|x y.png")).substr(1, 3) == "PNG");
  CHECK(program.folder.files() == 5);
}

TEST_CASE("plot: without gnuplot the package is named") {
  Program program;
  const std::string path = program.folder.path("");
  const int status = std::system(("cd " + path +
                                  " && PATH=/nowhere " KVSIM_PROGRAM
                                  " plot run.json --kind latency -o x.svg 2> err.txt")
                                     .c_str());
  CHECK(WEXITSTATUS(status) == 1);
  CHECK_THAT(read_bytes(program.folder.path("err.txt")), ContainsSubstring("gnuplot"));
  CHECK_THAT(read_bytes(program.folder.path("err.txt")), ContainsSubstring("package"));
}
