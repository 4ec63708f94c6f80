#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/error.h"
#include "core/hdf5.h"
#include "tests/catch.h"

namespace kvsim::hdf5 {
namespace {

using testing::ContainsSubstring;

struct TemporaryFile {
  std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("kvsim_hdf5_{}.h5", ::getpid()))
          .string();
  TemporaryFile() = default;
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::filesystem::remove(path); }
  File create() const { return File::create(path, path); }
};

}  // namespace

TEST_CASE("attributes come back as written") {
  const TemporaryFile temporary;
  File file = temporary.create();
  file.create_group("/a/b");
  file.write_attribute("/", "whole", std::int64_t{-5});
  file.write_attribute("/a/b", "most", std::numeric_limits<std::int64_t>::max());
  file.write_attribute("/a/b", "real", 0.1);
  file.write_attribute("/a/b", "text", std::string("Größe, 大きさ"));
  file.write_attribute("/a/b", "empty", std::string());
  file.close();
  const File read = File::open(temporary.path);
  CHECK(read.int_attribute("/", "whole") == -5);
  CHECK(read.double_attribute("/", "whole") == -5.0);
  CHECK(read.int_attribute("/a/b", "most") == std::numeric_limits<std::int64_t>::max());
  CHECK(read.double_attribute("/a/b", "real") == 0.1);
  CHECK(read.string_attribute("/a/b", "text") == "Größe, 大きさ");
  CHECK(read.string_attribute("/a/b", "empty").empty());
  CHECK(read.has_attribute("/a/b", "real"));
  CHECK_FALSE(read.has_attribute("/a", "real"));
}

TEST_CASE("numbers and strings come back as written, contiguous and compressed") {
  const TemporaryFile temporary;
  const DatasetOptions options{GENERATE(false, true)};
  std::vector<double> reals(30000);
  std::vector<std::int64_t> wholes(30000);
  for (std::size_t i = 0; i < reals.size(); ++i) {
    reals[i] = 1.0 / static_cast<double>(i + 1);
    wholes[i] = static_cast<std::int64_t>(i) - 7;
  }
  File file = temporary.create();
  file.create_group("/t");
  file.write<double>("/t/reals", reals, {300, 100}, options);
  file.write<std::int64_t>("/t/wholes", wholes, {30000}, options);
  file.write<float>("/t/none", {}, {0, 4}, options);
  file.write_strings("/t/names", std::vector<std::string>{"α", "", "santa-sys:samples=128"});
  file.close();
  const File read = File::open(temporary.path);
  CHECK(read.open_dataset("/t/reals").extent() == Extent{300, 100});
  CHECK(read.open_dataset("/t/reals").read<double>() == reals);
  CHECK(read.open_dataset("/t/wholes").read<std::int64_t>() == wholes);
  CHECK(read.open_dataset("/t/none").read<float>().empty());
  CHECK(read.open_dataset("/t/names").read_strings() ==
        std::vector<std::string>{"α", "", "santa-sys:samples=128"});
  CHECK(read.children("/t") == std::vector<std::string>{"names", "none", "reals", "wholes"});
  CHECK(read.is_group("/t"));
  CHECK_FALSE(read.is_group("/t/names"));
  CHECK_FALSE(read.is_group("/u"));
}

TEST_CASE("a box of a dataset is written and read in place") {
  const TemporaryFile temporary;
  File file = temporary.create();
  Dataset dataset = file.create_dataset("/x", NumberType::kInt32, {4, 5});
  const std::vector<std::int32_t> zeros(20, 0);
  dataset.write_raw(std::as_bytes(std::span(zeros)));
  const std::vector<std::int32_t> box{1, 2, 3, 4, 5, 6};
  dataset.write_raw({1, 2}, {2, 3}, std::as_bytes(std::span(box)));
  CHECK(dataset.read<std::int32_t>() ==
        std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 4, 5, 6, 0, 0, 0, 0, 0});
  std::vector<std::int32_t> part(4);
  dataset.read_raw({1, 3}, {2, 2}, std::as_writable_bytes(std::span(part)));
  CHECK(part == std::vector<std::int32_t>{2, 3, 5, 6});
}

TEST_CASE("16-bit floats keep their bits and read as numbers") {
  const TemporaryFile temporary;
  File file = temporary.create();
  const std::vector<std::uint16_t> bf16{0x3f80, 0xc020, 0x0001, 0x7f7f};
  const std::vector<std::uint16_t> fp16{0x3c00, 0xc100, 0x0001, 0x7bff};
  file.create_dataset("/bf16", NumberType::kBfloat16, {4})
      .write_raw(std::as_bytes(std::span(bf16)));
  file.create_dataset("/fp16", NumberType::kFloat16, {4}).write_raw(std::as_bytes(std::span(fp16)));
  file.close();
  const File read = File::open(temporary.path);
  const Dataset b = read.open_dataset("/bf16");
  CHECK(b.type() == NumberType::kBfloat16);
  CHECK(b.read<float>() == std::vector<float>{1.0f, -2.5f, 0x1p-133f, 0x1.fep127f});
  std::vector<std::uint16_t> raw(4);
  b.read_raw(std::as_writable_bytes(std::span(raw)));
  CHECK(raw == bf16);
  const Dataset h = read.open_dataset("/fp16");
  CHECK(h.type() == NumberType::kFloat16);
  CHECK(h.read<float>() == std::vector<float>{1.0f, -2.5f, 0x1p-24f, 65504.0f});
}

TEST_CASE("types are told apart, big-endian ones too") {
  CHECK(describe_type(H5T_IEEE_F32LE).type == NumberType::kFloat32);
  CHECK(describe_type(H5T_IEEE_F32BE).type == NumberType::kOther);
  CHECK(describe_type(H5T_IEEE_F32BE).text == "big-endian float32");
  CHECK(describe_type(H5T_STD_U16LE).text == "uint16");
  CHECK(describe_type(H5T_STD_I64LE).type == NumberType::kInt64);
  CHECK(describe_type(H5T_C_S1).type == NumberType::kString);
  const auto all = {NumberType::kFloat16, NumberType::kBfloat16, NumberType::kFloat32,
                    NumberType::kFloat64, NumberType::kInt32,    NumberType::kInt64,
                    NumberType::kString};
  for (const NumberType type : all) {
    const Handle id = file_type(type);
    CHECK(describe_type(id.id()).type == type);
    if (bytes_of(type) > 0) CHECK(H5Tget_size(id.id()) == static_cast<std::size_t>(bytes_of(type)));
  }
}

TEST_CASE("failures name file, object and reason") {
  const TemporaryFile temporary;
  File file = temporary.create();
  file.create_group("/g");
  file.write_attribute("/g", "text", std::string("x"));
  file.write<float>("/x", std::vector<float>{1, 2}, {2});
  const auto fails = [&](auto&& action, const char* message) {
    CHECK_THROWS_WITH(action(), ContainsSubstring(temporary.path + ": " + message));
  };
  fails([&] { file.int_attribute("/g", "none"); }, "/g: attribute 'none' is missing");
  fails([&] { file.int_attribute("/none", "a"); }, "/none: missing");
  fails([&] { file.int_attribute("/g", "text"); },
        "/g: attribute 'text' is a string, expected an integer");
  fails([&] { file.open_dataset("/g/none"); }, "/g/none: dataset is missing");
  fails([&] { file.open_dataset("/g"); }, "/g: expected a dataset");
  fails([&] { file.children("/x"); }, "/x: expected a group");
  fails([&] { file.open_dataset("/x").read_strings(); }, "/x: is float32, expected strings");
  fails([&] { file.create_group("/g"); }, "/g: cannot create the group");
  fails([&] { file.write<float>("/x", std::vector<float>{1}, {1}); },
        "/x: cannot create the dataset");
  fails([&] { file.create_dataset("/never", NumberType::kFloat32, {9}).checked_bytes(); },
        "/never: shape [9] needs 36 bytes, the file holds 0 of it");
}

TEST_CASE("an attribute with several values is refused") {
  const TemporaryFile temporary;
  File file = temporary.create();
  file.close();
  {
    const Handle raw(H5Fopen(temporary.path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const hsize_t two = 2;
    const Handle space(H5Screate_simple(1, &two, nullptr), H5Sclose);
    const Handle attribute(
        H5Acreate2(raw.id(), "pair", H5T_STD_I64LE, space.id(), H5P_DEFAULT, H5P_DEFAULT),
        H5Aclose);
    const std::int64_t values[2] = {1, 2};
    H5Awrite(attribute.id(), H5T_NATIVE_INT64, values);
  }
  CHECK_THROWS_WITH(File::open(temporary.path).int_attribute("/", "pair"),
                    ContainsSubstring("/: attribute 'pair' holds 2 values, expected 1"));
}

TEST_CASE("strings of fixed length are read without their padding") {
  const TemporaryFile temporary;
  temporary.create().close();
  {
    const Handle raw(H5Fopen(temporary.path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    for (const H5T_str_t padding : {H5T_STR_NULLTERM, H5T_STR_NULLPAD, H5T_STR_SPACEPAD}) {
      const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
      H5Tset_size(type.id(), 8);
      H5Tset_strpad(type.id(), padding);
      const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
      const std::string name = fmt::format("s{}", static_cast<int>(padding));
      const Handle attribute(
          H5Acreate2(raw.id(), name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT),
          H5Aclose);
      H5Awrite(attribute.id(), type.id(), padding == H5T_STR_SPACEPAD ? "heads   " : "heads\0\0\0");
    }
  }
  const File file = File::open(temporary.path);
  CHECK(file.string_attribute("/", "s0") == "heads");
  CHECK(file.string_attribute("/", "s1") == "heads");
  CHECK(file.string_attribute("/", "s2") == "heads");
}

TEST_CASE("files that cannot be opened or created") {
  CHECK_THROWS_WITH(File::open("/nonexistent/x.h5"), "/nonexistent/x.h5: no such file");
  CHECK_THROWS_WITH(File::open("/tmp"), ContainsSubstring("/tmp: is a folder"));
  CHECK_THROWS_WITH(File::create("/nonexistent/x.h5", "shown.h5"),
                    ContainsSubstring("shown.h5: cannot create the HDF5 file"));
  const TemporaryFile temporary;
  std::ofstream(temporary.path) << "nothing of the kind";
  CHECK_THROWS_WITH(File::open(temporary.path), ContainsSubstring(": not an HDF5 file"));
}

TEST_CASE("extents multiply without overflow") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(elements_of({}) == 1);
  CHECK(elements_of({3, 0, kMost}) == 0);
  CHECK(elements_of({3, 4}) == 12);
  CHECK(elements_of({kMost, 2}) == kMost);
  CHECK(elements_of({-1, 2}) == kMost);
  CHECK(to_string(Extent{3, 4}) == "[3, 4]");
  CHECK(to_string(Extent{}) == "a scalar");
}

TEST_CASE("what the library says is part of the message") {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("kvsim_no_hdf5_{}", ::getpid()))
          .string();
  std::ofstream(path) << "no HDF5 file at all, but long enough to be one";
  CHECK_THROWS_WITH(hdf5::File::open(path), path + ": not an HDF5 file: file signature not found");
  std::filesystem::remove(path);
  CHECK_THROWS_WITH(hdf5::File::create("/nowhere/x.h5", "shown.h5"),
                    ContainsSubstring("shown.h5: cannot create the HDF5 file: No such file"));
}

}  // namespace kvsim::hdf5
