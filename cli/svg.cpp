#include "cli/svg.h"

#include <fmt/format.h>

#include <cmath>

#include "cli/command.h"

namespace vqgen::cli {

std::string markup_text(const std::string& text) {
  // Through JSON, which has a replacement character for bytes that are no UTF-8.
  const std::string json =
      Json(one_line(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
  return replaced(Json::parse(json).get<std::string>(),
                  {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}});
}

double tick_step(double most) {
  const double power = std::pow(10.0, std::floor(std::log10(most / 5)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power * 5 >= most) return factor * power;
  }
  return 10 * power;
}

Svg::Svg(double width, double height, const std::string& paper, const std::string& ink)
    : body_(
          fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" "
                      "viewBox=\"0 0 {0:g} {1:g}\" font-family=\"sans-serif\" fill=\"{2}\">\n",
                      width, height, ink)) {
  rect(0, 0, width, height, paper);
}

void Svg::rect(double x, double y, double width, double height, const std::string& colour) {
  body_ += fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
      "shape-rendering=\"crispEdges\"/>\n",
      x, y, width, height, colour);
}

void Svg::line(double x1, double y1, double x2, double y2, const std::string& colour,
               const std::string& dashes) {
  body_ +=
      fmt::format("<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" stroke=\"{}\"", x1,
                  y1, x2, y2, colour);
  if (!dashes.empty()) body_ += fmt::format(" stroke-dasharray=\"{}\"", dashes);
  body_ += "/>\n";
}

void Svg::polyline(const std::vector<std::pair<double, double>>& points,
                   const std::string& colour) {
  body_ += "<polyline fill=\"none\" stroke-width=\"2\" points=\"";
  for (const auto& [x, y] : points) body_ += fmt::format("{:.2f},{:.2f} ", x, y);
  body_ += fmt::format("\" stroke=\"{}\"/>\n", colour);
}

void Svg::circle(double x, double y, double radius, const std::string& fill,
                 const std::string& stroke, const std::string& title) {
  body_ += fmt::format(
      "<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{:g}\" fill=\"{}\" stroke=\"{}\">"
      "<title>{}</title></circle>\n",
      x, y, radius, fill, stroke, markup_text(title));
}

void Svg::text(double x, double y, double size, const std::string& text, Anchor anchor, bool bold) {
  static constexpr const char* kAnchors[] = {"start", "middle", "end"};
  add_text(
      fmt::format("x=\"{:.2f}\" y=\"{:.2f}\" font-size=\"{:g}\" text-anchor=\"{}\"{}", x, y, size,
                  kAnchors[static_cast<int>(anchor)], bold ? " font-weight=\"bold\"" : ""),
      text);
}

void Svg::text_upwards(double x, double y, double size, const std::string& text) {
  add_text(fmt::format("transform=\"translate({:.2f} {:.2f}) rotate(-90)\" font-size=\"{:g}\" "
                       "text-anchor=\"middle\"",
                       x, y, size),
           text);
}

void Svg::add_text(const std::string& attributes, const std::string& text) {
  body_ += fmt::format("<text {}>{}</text>\n", attributes, markup_text(text));
}

std::string Svg::document() const { return body_ + "</svg>\n"; }

}  // namespace vqgen::cli
