#include "sim/cli/command_line.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "core/error.h"

namespace kvsim {

namespace po = boost::program_options;

namespace {

constexpr unsigned kHelpColumns = 100;
constexpr int kMaxThreads = 1024;

bool is_file_name(const std::string& word) {
  return word.ends_with(".h5") || word.ends_with(".hdf5") || word.find('/') != std::string::npos;
}

}  // namespace

CommandLine::CommandLine(std::string usage, std::string summary)
    : usage_(std::move(usage)),
      summary_(std::move(summary)),
      own_("Options", kHelpColumns),
      common_("Options of every verb", kHelpColumns) {
  common_.add_options()("json", po::bool_switch(), "print one JSON document on standard output")(
      "seed", po::value<std::string>()->default_value("0")->value_name("N"),
      "seed of all random numbers")("threads",
                                    po::value<std::string>()->default_value("0")->value_name("N"),
                                    "threads; 0 = all cores; results do not depend on it")(
      "force", po::bool_switch(), "overwrite output files")(
      "presets", po::value<std::string>()->value_name("DIR"),
      "folder searched before the presets in the program")("help,h", po::bool_switch(),
                                                           "print this help");
}

po::options_description_easy_init CommandLine::own() { return own_.add_options(); }

void CommandLine::take_positional(const std::string& name, const std::string& help) {
  positional_ = name;
  positional_help_ = help;
}

/// In `--method dense trace.h5` the list of methods ends where a file begins: files that stand
/// behind such a list are moved to the words without a flag.
std::vector<std::string> CommandLine::free_files(const std::vector<std::string>& words) const {
  std::vector<std::string> result;
  std::vector<std::string> files;
  std::size_t first_flag = words.size();
  bool in_list = false;  // of an option that takes several words and has one
  bool expects_word = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.starts_with("-") && word.size() > 1) {
      first_flag = std::min(first_flag, i);
      const std::size_t equals = word.find('=');
      const std::size_t dashes = word.starts_with("--") ? 2 : 0;
      const auto* option = own_.find_nothrow(word.substr(dashes, equals - dashes), false);
      expects_word = option != nullptr && option->semantic()->max_tokens() > 1;
      in_list = expects_word && equals != std::string::npos;
    } else if (in_list && is_file_name(word)) {
      files.push_back(word);
      continue;
    } else {
      in_list = expects_word;
    }
    result.push_back(word);
  }
  result.insert(result.begin() + static_cast<std::ptrdiff_t>(std::min(first_flag, result.size())),
                files.begin(), files.end());
  return result;
}

bool CommandLine::parse(const std::vector<std::string>& words) {
  po::options_description all;
  all.add(own_).add(common_);
  po::positional_options_description positions;
  if (!positional_.empty()) {
    all.add_options()(positional_.c_str(), po::value<std::vector<std::string>>());
    positions.add(positional_.c_str(), -1);
  }
  // Guessing would make `--me` mean --method today and something else with the next option.
  const int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
  try {
    po::store(po::command_line_parser(positional_.empty() ? words : free_files(words))
                  .options(all)
                  .positional(positions)
                  .style(style)
                  .run(),
              values_);
    po::notify(values_);
  } catch (const po::too_many_positional_options_error&) {
    throw UsageError("unexpected argument: this verb takes flags only, -h shows them");
  } catch (const po::error& error) {
    throw UsageError(error.what());
  }
  if (given("help")) {
    print_help();
    return false;
  }
  omp_set_num_threads(threads());  // for the code that asks OpenMP, not us
  return true;
}

void CommandLine::print_help() const {
  std::ostringstream out;
  out << "kvsim " << usage_ << "\n" << summary_ << "\n";
  if (!positional_help_.empty()) out << "\n" << positional_help_ << "\n";
  out << "\n";
  if (!own_.options().empty()) out << own_ << "\n";
  out << common_;
  print_text(out.str());
}

bool CommandLine::given(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end() || found->second.empty()) return false;
  if (const auto* flag = boost::any_cast<bool>(&found->second.value())) return *flag;
  return !found->second.defaulted();
}

std::string CommandLine::text(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end() || found->second.empty()) return "";
  return found->second.as<std::string>();
}

std::vector<std::string> CommandLine::list(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end() || found->second.empty()) return {};
  return found->second.as<std::vector<std::string>>();
}

std::int64_t CommandLine::integer(const std::string& name, std::int64_t low,
                                  std::int64_t high) const {
  const std::string word = text(name);
  std::size_t used = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(word, &used);
  } catch (const std::logic_error&) {  // not a number, or out of range
    used = std::string::npos;
  }
  if (used != word.size() || value < low || value > high) {
    fail<UsageError>("--{} {}: expected an integer from {} to {}", name, word, low, high);
  }
  return value;
}

double CommandLine::real(const std::string& name, double low, double high) const {
  const std::string word = text(name);
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(word, &used);
  } catch (const std::logic_error&) {
    used = std::string::npos;
  }
  if (used != word.size() || !(value >= low) || !(value <= high)) {
    fail<UsageError>("--{} {}: expected a number from {} to {}", name, word, low, high);
  }
  return value;
}

std::uint64_t CommandLine::seed() const {
  return static_cast<std::uint64_t>(integer("seed", 0, std::numeric_limits<std::int64_t>::max()));
}

int CommandLine::threads() const {
  const auto asked = static_cast<int>(integer("threads", 0, kMaxThreads));
  return asked == 0 ? omp_get_max_threads() : asked;
}

std::vector<DefaultUsed> CommandLine::defaults(const std::vector<std::string>& names) const {
  std::vector<DefaultUsed> result;
  for (const std::string& name : names) {
    if (!given(name) && !text(name).empty()) result.push_back({"--" + name, text(name)});
  }
  return result;
}

void print_text(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw RuntimeError("standard output: cannot write");
  }
}

void print_document(const nlohmann::ordered_json& document) {
  // Names of files may be any bytes.
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  print_text(document.dump(2, ' ', false, kReplace) + "\n");
}

}  // namespace kvsim
