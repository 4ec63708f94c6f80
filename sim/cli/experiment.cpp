// kvsim experiment: reproduces published tables, each a folder of experiments/.

#include <fmt/format.h>

#include <boost/program_options/value_semantic.hpp>

#include "core/error.h"
#include "sim/cli/list_kind.h"
#include "sim/cli/verb.h"
#include "sim/cli/version.h"
#include "sim/experiment_folders.h"
#include "sim/experiment_run.h"

namespace kvsim {
namespace {

namespace po = boost::program_options;

Json titles(const ExperimentFolders& folders) {
  Json items = Json::array();
  for (const std::string& name : folders.names()) {
    items.push_back({{"name", name}, {"title", folders.read(name).title}});
  }
  return items;
}

void print_list(const CommandLine& line, const ExperimentFolders& folders) {
  const Json items = titles(folders);
  if (!line.json()) return print_text(titles_text(items));
  print_document({{"schema", "kvsim.list/1"},
                  {"version", version()},
                  {"commit", commit()},
                  {"kind", "experiments"},
                  {"items", items}});
}

/// All are read before the first runs, so that a wrong name or file is known at once.
std::vector<Experiment> read_all(const std::vector<std::string>& asked,
                                 const ExperimentFolders& folders) {
  const bool all = asked.size() == 1 && asked[0] == "all";
  std::vector<Experiment> experiments;
  for (const std::string& name : all ? folders.names() : asked) {
    experiments.push_back(folders.read(name));
  }
  return experiments;
}

/// Options that the user gave and that every command understands.
CommonWords common_words(const CommandLine& line) {
  CommonWords words;
  for (const char* name : {"presets", "seed"}) {
    if (!line.given(name)) continue;
    words.shown.push_back(fmt::format("--{}", name));
    words.shown.push_back(line.text(name));
  }
  words.silent = {"--threads", line.text("threads")};
  return words;
}

void run(const std::vector<std::string>& words) {
  CommandLine line(
      "experiment list | all | NAME... [options]",
      "Reproduces published tables and figures: runs what stands in the folder of each "
      "and compares.");
  line.take_positional("name", "NAME...  experiments (kvsim experiment list shows them)");
  line.own()("experiments", po::value<std::string>()->value_name("DIR"),
             "folder searched before the experiments in the program")(
      "traces", po::value<std::string>()->value_name("DIR"),
      "folder of the shipped traces (default: traces/samples of kvsim's source)");
  if (!line.parse(words)) return;
  const std::vector<std::string> asked = line.list("name");
  if (asked.empty()) throw UsageError("no experiment given: list, all, or names from the list");
  const ExperimentFolders folders(line.text("experiments"));
  if (asked.size() == 1 && asked[0] == "list") return print_list(line, folders);
  const CommonWords common = common_words(line);
  Json experiments = Json::array();
  for (const Experiment& experiment : read_all(asked, folders)) {
    experiments.push_back(run_experiment(experiment, common, line.text("traces")));
    if (!line.json()) {
      if (experiments.size() > 1) print_text("\n");
      print_text(experiment_text(experiments.back()));
    }
  }
  if (line.json()) {
    print_document({{"schema", "kvsim.experiment/1"},
                    {"version", version()},
                    {"commit", commit()},
                    {"appended", fmt::format("{}", fmt::join(common.shown, " "))},
                    {"experiments", experiments}});
  }
  const std::vector<std::string> names = differing(experiments);
  if (!names.empty()) {
    fail<RuntimeError>("{} quantities differ without a reason: {}", names.size(),
                       fmt::join(names, "; "));
  }
}

KVSIM_REGISTER_VERB("experiment", {"reproduce published tables and compare", run});
KVSIM_REGISTER_LIST_KIND("experiments",
                         {[](const CommandLine&) { return titles(ExperimentFolders()); },
                          titles_text});

}  // namespace
}  // namespace kvsim
