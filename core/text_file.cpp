#include "core/text_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/error.h"

namespace kvsim {
namespace {

/// Bytes of the character that begins with `lead`, 0 if none does.
std::size_t length_of(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

/// Too long forms, halves of UTF-16 pairs and what lies beyond Unicode show in the second byte.
bool is_second(unsigned char lead, unsigned char second) {
  const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  return second >= low && second <= high;
}

}  // namespace

std::string read_text_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    fail<RuntimeError>("{}: is a folder, expected a file", path);
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in) {
    fail<RuntimeError>("{}: cannot be read{}{}", path, errno != 0 ? ": " : "",
                       errno != 0 ? std::strerror(errno) : "");
  }
  return text;
}

bool is_utf8(const std::string& text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = length_of(byte(i));
    if (length == 0 || i + length > text.size()) return false;
    if (length > 1 && !is_second(byte(i), byte(i + 1))) return false;
    for (std::size_t j = 2; j < length; ++j) {
      if ((byte(i + j) & 0xc0u) != 0x80u) return false;
    }
    i += length;
  }
  return true;
}

}  // namespace kvsim
