#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/error.h"
#include "core/output_file.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using testing::ContainsSubstring;

struct Folder {
  fs::path path = fs::temp_directory_path() / fmt::format("kvsim_output_{}", ::getpid());
  Folder() { fs::create_directories(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  auto files() const {
    return std::distance(fs::directory_iterator(path), fs::directory_iterator());
  }
};

std::string content(const std::string& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

TEST_CASE("an output file appears at commit, under its name only") {
  const Folder folder;
  const std::string path = folder / "a.txt";
  OutputFile file(path);
  std::ofstream(file.temporary()) << "hello";
  CHECK_FALSE(fs::exists(path));
  CHECK(fs::path(file.temporary()).parent_path() == folder.path);
  file.commit();
  CHECK(content(path) == "hello");
  CHECK(folder.files() == 1);
}

TEST_CASE("without a commit nothing is left, and an old file is kept") {
  const Folder folder;
  const std::string path = folder / "a.txt";
  write_text_file(path, "old", false);
  {
    OutputFile file(path, true);
    std::ofstream(file.temporary()) << "half";
    OutputFile moved(std::move(file));
  }
  CHECK(content(path) == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("an existing file is overwritten with force only") {
  const Folder folder;
  const std::string path = folder / "a.txt";
  write_text_file(path, "old", false);
  CHECK_THROWS_AS(OutputFile(path), RuntimeError);
  CHECK_THROWS_WITH(OutputFile(path), path + ": exists already; --force overwrites it");
  write_text_file(path, "new", true);
  CHECK(content(path) == "new");
}

TEST_CASE("a file that appears meanwhile is not overwritten without force") {
  const Folder folder;
  const std::string path = folder / "a.txt";
  OutputFile file(path);
  std::ofstream(path) << "other";
  CHECK_THROWS_WITH(file.commit(), ContainsSubstring("--force"));
  CHECK(content(path) == "other");
}

TEST_CASE("two writers of one target do not meet") {
  const Folder folder;
  OutputFile a(folder / "a.txt");
  OutputFile b(folder / "a.txt");
  CHECK(a.temporary() != b.temporary());
}

TEST_CASE("targets that cannot be files are refused") {
  const Folder folder;
  CHECK_THROWS_WITH(OutputFile(folder / "none/a.txt"),
                    ContainsSubstring("none/a.txt: cannot write here: No such file or directory"));
  write_text_file(folder / "plain", "x", false);
  CHECK_THROWS_WITH(OutputFile(folder / "plain/a.txt"), ContainsSubstring("Not a directory"));
  CHECK_THROWS_WITH(OutputFile(folder.path.string(), true), ContainsSubstring("is a folder"));
  CHECK_THROWS_WITH(OutputFile("/dev/null", true), ContainsSubstring("is no regular file"));
  CHECK_THROWS_AS(OutputFile(""), RuntimeError);
}

TEST_CASE("a symbolic link stays a link to what is written") {
  const Folder folder;
  write_text_file(folder / "real.txt", "old", false);
  fs::create_symlink("real.txt", folder / "link.txt");
  write_text_file(folder / "link.txt", "new", true);
  CHECK(fs::is_symlink(folder / "link.txt"));
  CHECK(content(folder / "real.txt") == "new");
}

}  // namespace kvsim
