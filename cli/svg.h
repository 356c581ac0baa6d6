// A small SVG writer: shapes and text appended to one string, in pixels from the top left.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace vqgen::cli {

// Text that stands for itself between the tags of XML and HTML, in one line.
std::string markup_text(const std::string& text);

// A step of 1, 2 or 5 times a power of ten, so that `most`, above 0, takes no more than five of
// them.
double tick_step(double most);

enum class Anchor { start, middle, end };

class Svg {
 public:
  // Colours are SVG's, such as "#336699", or "var(--name)" within a page that defines it.
  Svg(double width, double height, const std::string& paper = "#ffffff",
      const std::string& ink = "#222222");

  void rect(double x, double y, double width, double height, const std::string& colour);
  // `dashes` as SVG's stroke-dasharray; "" is a whole line.
  void line(double x1, double y1, double x2, double y2, const std::string& colour,
            const std::string& dashes = "");
  void polyline(const std::vector<std::pair<double, double>>& points, const std::string& colour);
  // Shows `title` to the one who points at it.
  void circle(double x, double y, double radius, const std::string& fill, const std::string& stroke,
              const std::string& title);
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
