#include <algorithm>
#include <array>
#include <cmath>

#include "cli/svg.h"
#include "cli/tune_report.h"
#include "core/plan/plan_name.h"

namespace vqgen::cli {
namespace {

constexpr double kChartTop = 34, kChartHeight = 330, kChartLeft = 62, kChartWidth = 420;
constexpr double kChartGap = 80, kChartFoot = 44;
constexpr const char* kChartInk = "var(--ink)";
constexpr const char* kChartGrid = "var(--grid)";
constexpr const char* kChartMark = "var(--mark)";

bool is_drawn(double value) { return std::isfinite(value) && value > 0; }

// Values from `least` to `most` between two places in pixels.
struct ChartAxis {
  double least, most;
  double from, to;
  bool logarithmic;

  double operator()(double value) const {
    const double share = logarithmic ? std::log(value / least) / std::log(most / least)
                                     : (value - least) / (most - least);
    return from + (to - from) * share;
  }
  // 1, 2 and 5 times powers of ten; equal steps where those would be fewer than three.
  std::vector<double> ticks() const {
    std::vector<double> all;
    if (logarithmic) {
      for (double power = std::floor(std::log10(least)); power <= std::log10(most); ++power) {
        for (const double factor : {1.0, 2.0, 5.0}) {
          const double tick = factor * std::pow(10.0, power);
          if (tick >= least && tick <= most) all.push_back(tick);
        }
      }
      if (all.size() >= 3) return all;
      all.clear();
    }
    const double step = tick_step(most - least);
    for (double i = std::ceil(least / step); i * step <= most; ++i) all.push_back(i * step);
    return all;
  }
};

// A logarithmic axis with some room at both ends.
ChartAxis roomy_axis(double least, double most, double from, double to) {
  const double room = std::max(1.04, std::pow(most / least, 0.04));
  return {least / room, most * room, from, to, true};
}

void draw_frame(Svg& svg, const ChartAxis& x, const ChartAxis& y, const std::string& x_title,
                const std::string& y_title) {
  for (const double tick : x.ticks()) {
    svg.line(x(tick), y.from, x(tick), y.to, kChartGrid);
    svg.text(x(tick), y.from + 16, 11, fmt::format("{:.4g}", tick), Anchor::middle);
  }
  for (const double tick : y.ticks()) {
    svg.line(x.from, y(tick), x.to, y(tick), kChartGrid);
    svg.text(x.from - 6, y(tick) + 4, 11, fmt::format("{:.4g}", tick), Anchor::end);
  }
  svg.line(x.from, y.from, x.to, y.from, kChartInk);
  svg.line(x.from, y.from, x.from, y.to, kChartInk);
  svg.text((x.from + x.to) / 2, y.from + 36, 12, x_title, Anchor::middle);
  svg.text_upwards(x.from - 46, (y.from + y.to) / 2, 12, y_title);
}

// The place of the plan's dataflow among those of its op.
std::size_t flow_of(const Plan& plan) {
  return std::visit(
      [&]<class P>(const P&) {
        std::size_t place = 0;
        for_each_dataflow([&]<class Other>(const Other& other) {
          const bool before = Plan(other).index() < plan.index();
          if (std::is_same_v<OpOf<P>, OpOf<Other>> && before) ++place;
        });
        return place;
      },
      plan);
}

std::string flow_colour(std::size_t flow) { return fmt::format("var(--flow-{})", flow); }

// A candidate with both its times.
struct Point {
  double expected, measured;
  const Trial& trial;
};

std::vector<Point> points_of(const TuneResult& result) {
  std::vector<Point> points;
  for (const Trial& trial : result.trials) {
    const Measurement& m = trial.measurement;
    if (m.outcome != Outcome::timed || !trial.expected_us) continue;
    if (!is_drawn(m.time_us) || !is_drawn(*trial.expected_us)) continue;
    points.push_back({*trial.expected_us, m.time_us, trial});
  }
  return points;
}

void draw_points(Svg& svg, const ChartAxis& x, const ChartAxis& y,
                 const std::vector<Point>& points) {
  for (const Point& point : points) {
    const Plan& plan = point.trial.measurement.plan;
    svg.circle(x(point.expected), y(point.measured), 3, flow_colour(flow_of(plan)), "none",
               fmt::format("{}: {:.2f} us, expected {:.2f} us", plan_name(plan), point.measured,
                           point.expected));
  }
}

// A ring around the plan where it is among the points, and its name beside the chart.
void draw_ring(Svg& svg, const ChartAxis& x, const ChartAxis& y, const std::vector<Point>& points,
               const Plan& plan, double radius, const std::string& name) {
  for (const Point& point : points) {
    if (point.trial.measurement.plan != plan) continue;
    svg.circle(x(point.expected), y(point.measured), radius, "none", kChartMark, name);
    svg.text(x(point.expected) + radius + 3, y(point.measured) - radius, 11, name, Anchor::start,
             true);
    return;
  }
}

void draw_flow_legend(Svg& svg, double x, const std::vector<Point>& points) {
  std::array<std::string, kDataflows> names;
  for (const Point& point : points) {
    const Plan& plan = point.trial.measurement.plan;
    names.at(flow_of(plan)) = dataflow_name(plan);
  }
  for (std::size_t flow = 0; flow < names.size(); ++flow) {
    if (names[flow].empty()) continue;
    svg.rect(x, 12, 10, 10, flow_colour(flow));
    svg.text(x + 15, 21, 12, names[flow]);
    x += 100;
  }
}

// The best so far after each timed candidate, and where it stood.
struct BestSoFar {
  std::vector<double> seconds, candidates, best;
};

BestSoFar best_so_far(const TuneResult& result) {
  BestSoFar all;
  for (std::size_t i = 0; i < result.trials.size(); ++i) {
    const Trial& trial = result.trials[i];
    const double us = trial.measurement.time_us;
    if (trial.measurement.outcome != Outcome::timed || !is_drawn(us)) continue;
    all.seconds.push_back(std::isfinite(trial.at_s) ? std::max(trial.at_s, 0.0) : 0.0);
    all.candidates.push_back(static_cast<double>(i + 1));
    all.best.push_back(all.best.empty() ? us : std::min(us, all.best.back()));
  }
  return all;
}

void draw_steps(Svg& svg, const ChartAxis& x, const ChartAxis& y, const std::vector<double>& at,
                const std::vector<double>& best) {
  std::vector<std::pair<double, double>> corners;
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (i > 0) corners.emplace_back(x(at[i]), y(best[i - 1]));
    corners.emplace_back(x(at[i]), y(best[i]));
  }
  corners.emplace_back(x(x.most), y(best.back()));
  svg.polyline(corners, kChartMark);
}

}  // namespace

std::string landscape_svg(const TunedProblem& problem) {
  const std::vector<Point> points = points_of(problem.result);
  if (points.empty()) return "";
  double least = points[0].expected, most = least;
  for (const Point& point : points) {
    least = std::min({least, point.expected, point.measured});
    most = std::max({most, point.expected, point.measured});
  }
  Svg svg(kChartLeft + kChartWidth + 70, kChartTop + kChartHeight + kChartFoot, "var(--paper)",
          kChartInk);
  const double bottom = kChartTop + kChartHeight;
  const ChartAxis x = roomy_axis(least, most, kChartLeft, kChartLeft + kChartWidth);
  const ChartAxis y = roomy_axis(least, most, bottom, kChartTop);
  draw_frame(svg, x, y, "expected by the cost model, us", "measured, us");
  svg.line(x.from, y.from, x.to, y.to, kChartInk, "4 4");
  draw_points(svg, x, y, points);
  draw_ring(svg, x, y, points, problem.result.row.default_plan, 7, "default");
  draw_ring(svg, x, y, points, problem.result.row.plan, 10, "winner");
  draw_flow_legend(svg, kChartLeft, points);
  return svg.document();
}

std::string convergence_svg(const TunedProblem& problem) {
  const BestSoFar so_far = best_so_far(problem.result);
  if (so_far.best.empty()) return "";
  double least = so_far.best.back(), most = so_far.best.front();
  const double default_us = problem.result.row.default_us;
  if (is_drawn(default_us)) {
    least = std::min(least, default_us);
    most = std::max(most, default_us);
  }
  const double right = kChartLeft + kChartWidth + kChartGap;
  Svg svg(right + kChartWidth + 20, kChartTop + kChartHeight + kChartFoot, "var(--paper)",
          kChartInk);
  const ChartAxis y = roomy_axis(least, most, kChartTop + kChartHeight, kChartTop);
  const auto draw = [&](double left, const std::vector<double>& at, double end, const char* title) {
    const double furthest = std::max({at.back(), std::isfinite(end) ? end : 0.0, 1e-9});
    const ChartAxis x{0, furthest, left, left + kChartWidth, false};
    draw_frame(svg, x, y, title, "best so far, us");
    if (is_drawn(default_us)) {
      svg.line(x.from, y(default_us), x.to, y(default_us), kChartInk, "7 4");
      svg.text(x.to, y(default_us) - 5, 11, "default in the finals", Anchor::end);
    }
    draw_steps(svg, x, y, at, so_far.best);
  };
  draw(kChartLeft, so_far.seconds, problem.result.spent_s, "seconds");
  draw(right, so_far.candidates, static_cast<double>(problem.result.trials.size()), "candidates");
  return svg.document();
}

}  // namespace vqgen::cli
