#pragma once

#include <string>

namespace kvsim {

/// The bytes of a whole file. Throws RuntimeError that names it if it is missing, a folder, or
/// cannot be read.
std::string read_text_file(const std::string& path);

/// True when the text is UTF-8 throughout, as JSON demands.
bool is_utf8(const std::string& text);

}  // namespace kvsim
