// A small SVG writer: shapes and text appended to one string, in pixels from the top left.
#pragma once

#include <string>

namespace vqgen::cli {

enum class Anchor { start, middle, end };

class Svg {
 public:
  Svg(double width, double height);

  // Colours are SVG's, such as "#336699".
  void rect(double x, double y, double width, double height, const std::string& colour);
  // `dashes` as SVG's stroke-dasharray; "" is a whole line.
  void line(double x1, double y1, double x2, double y2, const std::string& colour,
            const std::string& dashes = "");
  // Markup and control characters in `text` are made harmless.
  void text(double x, double y, double size, const std::string& text, Anchor anchor = Anchor::start,
            bool bold = false);
  // Reads upwards, centred.
  void text_upwards(double x, double y, double size, const std::string& text);

  std::string document() const;

 private:
  void add_text(const std::string& attributes, const std::string& text);
  std::string body_;
};

}  // namespace vqgen::cli
