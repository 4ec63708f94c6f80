#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/estimate.h"

namespace kvsim {

/// A TOML preset read strictly. A constant is a table { value, unit, kind, source } with optional
/// low, high, note and alternatives (an array of { value, source, note }); `kind` is a word of
/// Source, `source` a key of the file's [sources]. Every getter throws RuntimeError that names
/// file, key, what was found and what was expected: a missing key, kind or source, another unit,
/// low > value or value > high, a negative value. Keys are dotted ("memory.stream.rate"). `finish`
/// refuses keys that nobody read.
class PresetFile {
 public:
  /// `path` is only used in messages. Throws RuntimeError with line and column for bad TOML.
  static PresetFile parse(const std::string& text, const std::string& path);
  /// `top` laid over the preset it inherits from: its constants and plain values replace those of
  /// `base` as a whole, other tables are merged; its key `inherits` is done with. Messages keep
  /// naming the file a key stands in.
  static PresetFile overlay(PresetFile base, PresetFile top);
  PresetFile(PresetFile&&) noexcept;
  ~PresetFile();

  bool has(std::string_view key) const;
  /// A constant with its interval (low = high = value when not given). The unit must match exactly.
  Estimate number(std::string_view key, std::string_view unit) const;
  /// As `number`, and between `low` and `high` (a share above 1 is an error, say).
  Estimate number(std::string_view key, std::string_view unit, double low, double high) const;
  std::int64_t integer(std::string_view key, std::string_view unit) const;
  std::int64_t integer(std::string_view key, std::string_view unit, std::int64_t low,
                       std::int64_t high) const;
  /// A curve { x, y, x_unit, unit, kind, source } with ascending x above 0; y may have low and high
  /// arrays.
  struct Curve {
    std::vector<double> x;
    std::vector<Estimate> y;
  };
  Curve curve(std::string_view key, std::string_view x_unit, std::string_view unit) const;
  /// As `curve`, with every y between `low` and `high`.
  Curve curve(std::string_view key, std::string_view x_unit, std::string_view unit, double low,
              double high) const;
  /// A plain string, integer or boolean that needs no source (name, title, class words).
  std::string text(std::string_view key) const;
  bool flag(std::string_view key) const;
  std::vector<std::int64_t> plain_integers(std::string_view key) const;
  std::vector<std::string> keys(std::string_view table) const;  // direct children
  /// Where a constant comes from, for itemised output ("Horowitz, ISSCC 2014").
  std::string source_text(std::string_view key) const;

  void finish() const;

 private:
  struct Document;
  explicit PresetFile(std::unique_ptr<Document> document);
  std::unique_ptr<Document> document_;
};

}  // namespace kvsim
