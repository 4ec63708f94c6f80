#include "tests/sim/broken_files.h"

#include <hdf5.h>

#include <filesystem>
#include <functional>
#include <stdexcept>

#include "tests/sim/program.h"

namespace kvsim::testing {
namespace {

namespace fs = std::filesystem;

/// Turns HDF5's negative results into exceptions.
hid_t checked(hid_t id) {
  if (id < 0) throw std::runtime_error("HDF5 call failed in a test");
  return id;
}

void edit(const std::string& file, const std::function<void(hid_t)>& change) {
  const hid_t id = checked(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
  change(id);
  checked(H5Fclose(id));
}

void write_scalar(hid_t file, const std::string& object, const std::string& name, hid_t type,
                  const void* value) {
  if (checked(H5Aexists_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT)) > 0) {
    checked(H5Adelete_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT));
  }
  const hid_t space = checked(H5Screate(H5S_SCALAR));
  const hid_t attribute = checked(H5Acreate_by_name(file, object.c_str(), name.c_str(), type, space,
                                                    H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  checked(H5Awrite(attribute, type, value));
  checked(H5Aclose(attribute));
  checked(H5Sclose(space));
}

/// A copy of good.h5 with one thing changed.
void variant(const TemporaryFolder& folder, const std::string& name,
             const std::function<void(const std::string&)>& change) {
  const std::string path = folder.file(name);
  fs::copy_file(folder.file("good.h5"), path);
  change(path);
}

void write_broken_presets(const TemporaryFolder& folder) {
  const std::string good = read_text(KVSIM_SOURCE_DIR "/models/presets/gpus/h200_sxm.toml");
  const auto preset = [&](const std::string& name, const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t found = text.find(from);
    if (found == std::string::npos) throw std::runtime_error("preset has no '" + from + "'");
    text.replace(found, from.size(), to);
    write_text(folder.file("presets/gpus/" + name + ".toml"), text);
  };
  fs::create_directories(folder.path() / "presets/gpus");
  const std::string clock = "clock = { value = 1980, unit = \"MHz\", kind = \"spec\", ";
  preset("no_kind", clock, "clock = { value = 1980, unit = \"MHz\", ");
  preset("no_unit", clock, "clock = { value = 1980, kind = \"spec\", ");
  preset("no_value", clock, "clock = { unit = \"MHz\", kind = \"spec\", ");
  preset("wrong_unit", clock, "clock = { value = 1980, unit = \"GHz\", kind = \"spec\", ");
  preset("bad_kind", clock, "clock = { value = 1980, unit = \"MHz\", kind = \"guess\", ");
  preset("negative", clock, "clock = { value = -1980, unit = \"MHz\", kind = \"spec\", ");
  preset("unknown_source", clock + "source = \"nvidia\"", clock + "source = \"nobody\"");
  preset("missing_key", "clock = {", "clook = {");
  preset("unknown_key", clock,
         "clook = { value = 1, unit = \"MHz\", kind = \"spec\", source = \"nvidia\" }\n" + clock);
  preset("no_sms", "sms = { value = 132", "sms = { value = 0");
  preset("huge_clock", clock, "clock = { value = 1e12, unit = \"MHz\", kind = \"spec\", ");
  fs::create_directories(folder.path() / "presets/gpus/folder.toml");
  write_text(folder.file("presets/gpus/not_toml.toml"), "title = \n[[[");
}

void write_configs(const TemporaryFolder& folder) {
  write_text(folder.file("not_json.json"), "{\"hidden_size\": ");
  write_text(folder.file("no_heads.json"),
             R"({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4,
                 "intermediate_size": 1024, "vocab_size": 1000})");
  write_text(folder.file("no_layers.json"),
             R"({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 0,
                 "num_attention_heads": 8, "intermediate_size": 1024, "vocab_size": 1000})");
  write_text(folder.file("bad_heads.json"),
             R"({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4,
                 "num_attention_heads": 7, "num_key_value_heads": 2, "intermediate_size": 1024,
                 "vocab_size": 1000})");
}

}  // namespace

void set_attribute(const std::string& file, const std::string& object, const std::string& name,
                   std::int64_t value) {
  edit(file, [&](hid_t id) { write_scalar(id, object, name, H5T_NATIVE_INT64, &value); });
}

void set_attribute(const std::string& file, const std::string& object, const std::string& name,
                   const std::string& value) {
  edit(file, [&](hid_t id) {
    const hid_t type = checked(H5Tcopy(H5T_C_S1));
    checked(H5Tset_size(type, H5T_VARIABLE));
    const char* text = value.c_str();
    write_scalar(id, object, name, type, &text);
    checked(H5Tclose(type));
  });
}

void delete_attribute(const std::string& file, const std::string& object, const std::string& name) {
  edit(file, [&](hid_t id) {
    checked(H5Adelete_by_name(id, object.c_str(), name.c_str(), H5P_DEFAULT));
  });
}

void delete_object(const std::string& file, const std::string& object) {
  edit(file, [&](hid_t id) { checked(H5Ldelete(id, object.c_str(), H5P_DEFAULT)); });
}

void replace_dataset(const std::string& file, const std::string& object,
                     const std::vector<std::int64_t>& shape, bool integers) {
  edit(file, [&](hid_t id) {
    checked(H5Ldelete(id, object.c_str(), H5P_DEFAULT));
    const std::vector<hsize_t> dims(shape.begin(), shape.end());
    const hid_t space =
        checked(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
    const hid_t data =
        checked(H5Dcreate2(id, object.c_str(), integers ? H5T_STD_I16LE : H5T_IEEE_F32LE, space,
                           H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    checked(H5Dclose(data));
    checked(H5Sclose(space));
  });
}

void poke(const std::string& file, const std::string& object, std::size_t index,
          std::uint16_t bits) {
  edit(file, [&](hid_t id) {
    const hid_t data = checked(H5Dopen2(id, object.c_str(), H5P_DEFAULT));
    const hid_t type = checked(H5Dget_type(data));
    const hid_t space = checked(H5Dget_space(data));
    std::vector<std::uint16_t> values(
        static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
    checked(H5Dread(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
    values.at(index) = bits;
    checked(H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
    checked(H5Sclose(space));
    checked(H5Tclose(type));
    checked(H5Dclose(data));
  });
}

void write_broken_files(const TemporaryFolder& folder) {
  constexpr std::uint16_t kNan = 0x7fc0;  // as bfloat16
  constexpr std::uint16_t kInfinity = 0x7f80;
  constexpr std::uint16_t kHuge = 0x7f7f;  // 3.4e38
  SmallTrace{}.write(folder.file("good.h5"));
  const std::string good = read_text(folder.file("good.h5"));
  write_text(folder.file("empty.h5"), "");
  write_text(folder.file("text.h5"), "this is no HDF5 file\n");
  write_text(folder.file("half.h5"), good.substr(0, good.size() / 2));
  write_text(folder.file("stub.h5"), good.substr(0, 100));
  write_text(folder.file("exists.h5"), "precious");
  fs::create_directory(folder.path() / "folder.h5");
  variant(folder, "nan_k.h5", [&](const std::string& f) { poke(f, "/layers/1/k", 500, kNan); });
  variant(folder, "inf_v.h5", [&](const std::string& f) { poke(f, "/layers/3/v", 77, kInfinity); });
  variant(folder, "huge_v.h5", [&](const std::string& f) { poke(f, "/layers/3/v", 77, kHuge); });
  variant(folder, "latin1.h5",
          [](const std::string& f) { set_attribute(f, "/", "model", std::string("caf\xe9")); });
  variant(folder, "scale.h5", [](const std::string& f) {
    set_attribute(f, "/layers/1", "scale", std::int64_t{100000000});
  });
  variant(folder, "nan_q.h5", [&](const std::string& f) { poke(f, "/layers/1/q", 3, kNan); });
  variant(folder, "short_k.h5", [](const std::string& f) {
    replace_dataset(f, "/layers/1/k", {2, 303, 32});
  });
  variant(folder, "flat_v.h5", [](const std::string& f) {
    replace_dataset(f, "/layers/1/v", {2 * 304, 32});
  });
  variant(folder, "int_q.h5", [](const std::string& f) {
    replace_dataset(f, "/layers/1/q", {4, 4, 32}, true);
  });
  variant(folder, "no_v.h5", [](const std::string& f) { delete_object(f, "/layers/3/v"); });
  variant(folder, "no_layers.h5", [](const std::string& f) { delete_object(f, "/layers"); });
  variant(folder, "no_prompt.h5",
          [](const std::string& f) { delete_attribute(f, "/", "prompt_tokens"); });
  variant(folder, "version9.h5",
          [](const std::string& f) { set_attribute(f, "/", "version", std::int64_t{9}); });
  variant(folder, "format.h5",
          [](const std::string& f) { set_attribute(f, "/", "format", std::string("else")); });
  variant(folder, "indivisible.h5",
          [](const std::string& f) { set_attribute(f, "/layers/1", "kv_heads", std::int64_t{3}); });
  variant(folder, "no_steps.h5",
          [](const std::string& f) { set_attribute(f, "/", "decode_steps", std::int64_t{0}); });
  write_broken_presets(folder);
  write_configs(folder);
}

}  // namespace kvsim::testing
