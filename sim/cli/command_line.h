#pragma once

#include <boost/program_options/options_description.hpp>
#include <boost/program_options/variables_map.hpp>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/default_used.h"

namespace kvsim {

/// The options of one verb: its own, and those that every verb has (--json, --seed, --threads,
/// --force,
/// --presets, --help). Use: construct, add the verb's own options, `parse`, then the getters.
class CommandLine {
 public:
  /// `usage` is what follows `kvsim`, "replay TRACE... --method M...".
  CommandLine(std::string usage, std::string summary);

  boost::program_options::options_description_easy_init own();
  /// Takes words without a flag, all of them, as the list `name`.
  void take_positional(const std::string& name, const std::string& help);

  /// Throws UsageError. False if help was asked for: it has been printed, there is nothing to do.
  bool parse(const std::vector<std::string>& words);

  /// Given by the user, not by a default.
  bool given(const std::string& name) const;
  std::string text(const std::string& name) const;               // "" if absent
  std::vector<std::string> list(const std::string& name) const;  // empty if absent
  std::int64_t integer(const std::string& name, std::int64_t low, std::int64_t high) const;
  double real(const std::string& name, double low, double high) const;

  bool json() const { return given("json"); }
  bool force() const { return given("force"); }
  std::uint64_t seed() const;
  int threads() const;
  std::string presets() const { return text("presets"); }

  /// The defaults that were used of the options named: what the result depends on and nobody typed.
  std::vector<DefaultUsed> defaults(const std::vector<std::string>& names) const;

 private:
  void print_help() const;
  std::vector<std::string> free_files(const std::vector<std::string>& words) const;

  std::string usage_;
  std::string summary_;
  boost::program_options::options_description own_;
  boost::program_options::options_description common_;
  std::string positional_;
  std::string positional_help_;
  boost::program_options::variables_map values_;
};

/// One document on standard output and nothing else there.
void print_document(const nlohmann::ordered_json& document);
void print_text(const std::string& text);

}  // namespace kvsim
