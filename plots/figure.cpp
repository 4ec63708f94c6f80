#include "plots/figure.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "plots/gnuplot.h"

namespace kvsim {
namespace {

constexpr int kPngScale = 2;  // for screens with small pixels; a README shows it at half the size
constexpr const char* kFont = "DejaVu Sans";
constexpr double kTitleSize = 15;
constexpr double kHeadingSize = 11;
constexpr double kTicSize = 10;
constexpr double kLegendSize = 10;
constexpr double kLegendRow = 17;
constexpr double kSwatch = 10;

/// A text in single quotes, in which gnuplot replaces nothing; a control character would end it.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char letter : text) {
    if (letter == '\'') result += '\'';
    const auto code = static_cast<unsigned char>(letter);
    result += code < 0x20 || code == 0x7F ? ' ' : letter;
  }
  return result + "'";
}

std::string terminal(ImageFormat format, double height) {
  const int scale = format == ImageFormat::kPng ? kPngScale : 1;
  const std::string size =
      fmt::format("size {:.0f},{:.0f} noenhanced background '#FFFFFF' font '{},11'",
                  Figure::kWidth * scale, height * scale, kFont);
  if (format == ImageFormat::kSvg) return "svg fixed " + size + " name 'kvsim'";
  // Fonts of pngcairo come out 4/3 as large as those of svg.
  return fmt::format("pngcairo {} fontscale {} linewidth {} pointscale {}", size, 0.75 * scale,
                     scale, scale);
}

/// Margins, ranges and borders; `set logscale` comes before the ranges.
std::string axes(const Panel& panel, double height) {
  const Area& area = panel.area();
  std::string commands = fmt::format(
      "reset\nset lmargin at screen {:.6f}\nset rmargin at screen {:.6f}\n"
      "set tmargin at screen {:.6f}\nset bmargin at screen {:.6f}\n",
      area.left / Figure::kWidth, area.right / Figure::kWidth, 1 - area.top / height,
      1 - area.bottom / height);
  const auto axis = [&](char name, const Axis& what) {
    if (what.logarithmic) commands += fmt::format("set logscale {}\n", name);
    commands += fmt::format("set {}range [{:.12g}:{:.12g}]\n", name, what.low, what.high);
    if (what.tics.empty()) {
      commands += fmt::format("unset {}tics\n", name);
      return;
    }
    commands += fmt::format("set {}tics scale 0 (", name);
    for (std::size_t i = 0; i < what.tics.size(); ++i) {
      commands += fmt::format("{}'' {:.12g}", i == 0 ? "" : ", ", what.tics[i].value);
    }
    commands += fmt::format(")\nset grid {}tics lc rgb '{}' lw 1 lt 1\n", name, hex(kGrid));
  };
  axis('x', panel.x());
  axis('y', panel.y());
  return commands + fmt::format("unset key\nset border 3 lc rgb '{}' lw 1\n", hex(kFaintInk));
}

/// A last pair of axes as large as the sheet, whose units are pixels.
std::string sheet(const std::string& commands, double height) {
  return fmt::format(
      "reset\nset lmargin at screen 0\nset rmargin at screen 1\nset tmargin at screen 1\n"
      "set bmargin at screen 0\nunset border\nunset tics\nunset key\nset xrange [0:{:.0f}]\n"
      "set yrange [{:.0f}:0]\n{}plot -1 notitle\n",
      Figure::kWidth, height, commands);
}

std::string arrow(double x0, double y0, double x1, double y1, Colour colour, double width) {
  return fmt::format("set arrow from {:.2f},{:.2f} to {:.2f},{:.2f} nohead lw {:g} lc rgb '{}'\n",
                     x0, y0, x1, y1, width, hex(colour));
}

std::string label(const PlacedText& placed) {
  const TextStyle& style = placed.style;
  const std::string_view align = style.align == Align::kLeft    ? "left"
                                 : style.align == Align::kRight ? "right"
                                                                : "center";
  return fmt::format("set label {} at {:.2f},{:.2f} {}{} font '{}{},{:g}' tc rgb '{}'\n",
                     quoted(placed.text), placed.x, placed.y, align,
                     style.upright ? " rotate by 90" : "", kFont, style.bold ? ":Bold" : "",
                     style.size, hex(style.colour));
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

/// Gives the SVG fonts that other systems have, and takes out gnuplot's version.
void finish_svg(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string svg{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const std::string fonts = "DejaVu Sans,Verdana,Helvetica,Arial,sans-serif\"";
  replace_all(svg, fmt::format("\"{}:Bold\"", kFont), "\"" + fonts + " font-weight=\"bold\"");
  replace_all(svg, fmt::format("\"{}\"", kFont), "\"" + fonts);
  const std::size_t begin = svg.find("<desc>");
  const std::size_t end = svg.find("</desc>");
  if (begin < end && end != std::string::npos) svg.erase(begin, end + 7 - begin);
  std::ofstream out(file, std::ios::binary);
  out << svg;
  out.close();
  if (!out) fail<RuntimeError>("{}: cannot write {} bytes", file, svg.size());
}

}  // namespace

ImageFormat image_format(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".svg") return ImageFormat::kSvg;
  if (extension == ".png") return ImageFormat::kPng;
  fail<UsageError>("{}: unknown extension '{}', expected one of: .svg, .png", path, extension);
}

void Figure::heading(const std::string& title, const std::vector<std::string>& lines) {
  constexpr double kRoom = kWidth - 2 * kMargin;
  text(kMargin, 22, fit_text(title, kTitleSize, kRoom, true), {.size = kTitleSize, .bold = true});
  double y = 43;
  for (const std::string& line : lines) {
    if (line.empty()) continue;
    text(kMargin, y, fit_text(line, kHeadingSize, kRoom),
         {.size = kHeadingSize, .colour = kFaintInk});
    y += 17;
  }
}

void Figure::footnote(const std::string& line) {
  text(kMargin, height_ - 13, fit_text(line, kTicSize, kWidth - 2 * kMargin),
       {.size = kTicSize, .colour = kFaintInk});
}

void Figure::add(const Panel& panel) {
  panels_ += axes(panel, height_);
  std::string plots;
  for (const Panel::Series& series : panel.series()) {
    const std::string name = fmt::format("$data{}", ++data_blocks_);
    data_ += name + " << EOD\n";
    for (const std::vector<double>& row : series.rows) {
      for (const double value : row) data_ += fmt::format("{:.9g} ", value);
      data_ += "\n";
    }
    data_ += "EOD\n";
    plots += fmt::format("{}{} {} notitle", plots.empty() ? "" : ", ", name, series.style);
  }
  // Without data there still are axes.
  panels_ += fmt::format("plot {}\n", plots.empty() ? "NaN notitle" : plots);
  draw_axis_text(panel);
}

void Figure::draw_axis_text(const Panel& panel) {
  const Area& area = panel.area();
  const TextStyle below{.size = kTicSize, .align = Align::kCentre};
  for (const Tic& tic : panel.x().tics) {
    text(panel.x_pixel(tic.value), area.bottom + 12, tic.text, below);
  }
  for (const Tic& tic : panel.y().tics) {
    text(area.left - 7, panel.y_pixel(tic.value), tic.text,
         {.size = kTicSize, .align = Align::kRight});
  }
  text((area.left + area.right) / 2, area.bottom + 31, panel.x().label, {.align = Align::kCentre});
  text(area.left - 50, (area.top + area.bottom) / 2, panel.y().label,
       {.align = Align::kCentre, .upright = true});
}

void Figure::text(double x, double y, const std::string& text, const TextStyle& style) {
  if (!text.empty()) texts_.push_back({x, y, text, style});
}

void Figure::marker(double x, double y, const Look& look, double size) {
  above_ += fmt::format("set label '' at {:.2f},{:.2f} point pt {} ps {:g} lw 1.5 lc rgb '{}'\n", x,
                        y, look.marker, size, hex(look.colour));
}

void Figure::line(double x0, double y0, double x1, double y1, Colour colour, double width) {
  above_ += arrow(x0, y0, x1, y1, colour, width);
}

void Figure::lead(double x0, double y0, double x1, double y1, Colour colour) {
  below_ += arrow(x0, y0, x1, y1, colour, 0.8);
}

void Figure::box(const Area& area, Colour colour) {
  below_ += fmt::format(
      "set object rectangle from {:.2f},{:.2f} to {:.2f},{:.2f} fc rgb '{}' fs solid noborder\n",
      area.left, area.top, area.right, area.bottom, hex(colour));
}

std::string Figure::script(ImageFormat format, const std::string& file) const {
  std::string above = above_;
  for (const PlacedText& placed : texts_) above += label(placed);
  return fmt::format(
      "set encoding utf8\nset terminal {}\nset output {}\n{}set multiplot\n{}{}{}"
      "unset multiplot\nset output\n",
      terminal(format, height_), quoted(file), data_, sheet(below_, height_), panels_,
      sheet(above, height_));
}

void Figure::write(OutputFile output, ImageFormat format) const {
  // An absolute name can be neither a pipe nor an option to gnuplot.
  const std::string file = std::filesystem::absolute(output.temporary()).string();
  run_gnuplot(script(format, file));
  if (format == ImageFormat::kSvg) finish_svg(file);
  output.commit();
}

double draw_legend(Figure* figure, const std::vector<LegendItem>& items, const Area& area) {
  double x = area.left;
  double y = area.top;
  for (const LegendItem& item : items) {
    const double width = kSwatch + 5 + text_width(item.text, kLegendSize);
    if (x > area.left && x + width > area.right) {
      x = area.left;
      y += kLegendRow;
    }
    if (figure != nullptr) {
      const double middle = y + kLegendRow / 2;
      figure->box({x, middle - kSwatch / 2, x + kSwatch, middle + kSwatch / 2}, item.colour);
      figure->text(x + kSwatch + 5, middle, item.text, {.size = kLegendSize});
    }
    x += width + 12;
  }
  return y + kLegendRow;
}

}  // namespace kvsim
