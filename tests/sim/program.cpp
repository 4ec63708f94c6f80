#include "tests/sim/program.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tests/catch.h"

namespace kvsim::testing {

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

ProgramResult run_program(const TemporaryFolder& folder, const std::string& arguments) {
  const std::string errors = folder.file("stderr.txt");
  const std::string command =
      "cd " + folder.path().string() + " && " KVSIM_PROGRAM " " + arguments + " 2> " + errors;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) throw std::runtime_error("popen failed");
  ProgramResult result;
  std::array<char, 4096> buffer{};
  while (const std::size_t read = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    result.out.append(buffer.data(), read);
  }
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.err = read_text(errors);
  std::filesystem::remove(errors);
  return result;
}

nlohmann::json document_of(const TemporaryFolder& folder, const std::string& arguments) {
  const ProgramResult result = run_program(folder, arguments + " --json");
  INFO("kvsim " << arguments << "\n" << result.err);
  REQUIRE(result.status == 0);
  return result.json();
}

}  // namespace kvsim::testing
