// vqgen profile: how often each entry of a bundle's codebooks is read. Its picture has figures 8
// and 9 of VQ-LLM for the tensors of a bundle: how uneven the accesses of entries are, and whether
// the hot entries are hot all over the tensor.
#include <algorithm>
#include <array>
#include <cmath>

#include "cli/command.h"
#include "cli/svg.h"
#include "core/files/files.h"
#include "core/hotness/hotness_summary.h"
#include "quantizer/hotness.h"

namespace vqgen::cli {
namespace {

constexpr double kWidth = 1120, kTitleHeight = 46, kRowHeight = 334;
constexpr double kPlotWidth = 440, kPlotHeight = 190;
constexpr double kLeft = 80, kRight = 620;  // of the plots of a row
constexpr const char* kInk = "#444444";
constexpr const char* kGrid = "#dddddd";
constexpr const char* kWarm = "#4c78a8";
constexpr const char* kHot = "#e45756";

struct Panel {
  double x, y;  // top left of the plot
  double right() const { return x + kPlotWidth; }
  double bottom() const { return y + kPlotHeight; }
};

// The codebook that a row of panels shows.
struct Shown {
  const HotnessProfile& profile;
  std::size_t codebook;
  HotnessFigures figures;
  std::vector<std::uint32_t> order;
};

// Dark where entries are seldom read, light where they are read most; `share` is 0..1.
std::string heat(double share) {
  static constexpr std::array<std::array<double, 3>, 5> kStops{
      {{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}}};
  const double place = std::clamp(share, 0.0, 1.0) * (kStops.size() - 1);
  const std::size_t stop = std::min(static_cast<std::size_t>(place), kStops.size() - 2);
  const double rest = place - static_cast<double>(stop);
  const auto mixed = [&](std::size_t i) {
    return static_cast<int>(std::lround(kStops[stop][i] * (1 - rest) + kStops[stop + 1][i] * rest));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mixed(0), mixed(1), mixed(2));
}

// Fig. 8. Above kMostBars entries a bar is the mean of neighbours.
void draw_accesses(Svg& svg, const Panel& panel, const Shown& shown) {
  constexpr std::size_t kMostBars = 512;
  const auto counts = shown.profile.codebook(shown.codebook);
  const std::size_t bars = std::min(counts.size(), kMostBars);
  const std::size_t grouped = counts.size() / bars;  // both are powers of two
  std::vector<double> heights(bars, 0.0);
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    heights[rank / grouped] +=
        static_cast<double>(counts[shown.order[rank]]) / static_cast<double>(grouped);
  }
  const HotnessFigures& figures = shown.figures;
  const double threshold = figures.mean + 3 * figures.sigma;
  const double most = std::max({heights.front(), threshold, 1.0}) * 1.06;
  const auto y_of = [&](double value) { return panel.bottom() - value / most * kPlotHeight; };

  for (double tick = 0; tick <= most; tick += tick_step(most)) {
    svg.line(panel.x, y_of(tick), panel.right(), y_of(tick), kGrid);
    svg.text(panel.x - 6, y_of(tick) + 4, 11, fmt::format("{:g}", tick), Anchor::end);
  }
  const double width = kPlotWidth / static_cast<double>(bars);
  for (std::size_t bar = 0; bar < bars; ++bar) {
    const bool hot = static_cast<double>(bar * grouped) < figures.hot_entries;
    svg.rect(panel.x + width * static_cast<double>(bar), y_of(heights[bar]), width,
             panel.bottom() - y_of(heights[bar]), hot ? kHot : kWarm);
  }
  svg.line(panel.x, y_of(figures.mean), panel.right(), y_of(figures.mean), kInk, "7 4");
  svg.line(panel.x, y_of(threshold), panel.right(), y_of(threshold), kHot, "2 3");
  for (int quarter = 0; quarter <= 4; ++quarter) {
    svg.text(panel.x + kPlotWidth * quarter / 4, panel.bottom() + 15, 11,
             fmt::format("{}", counts.size() * static_cast<std::size_t>(quarter) / 4),
             Anchor::middle);
  }
  svg.line(panel.x, panel.bottom(), panel.right(), panel.bottom(), kInk);
  svg.text(panel.x + kPlotWidth / 2, panel.bottom() + 32, 12,
           grouped == 1
               ? "entries, the most read first"
               : fmt::format("entries, the most read first; a bar is the mean of {}", grouped),
           Anchor::middle);
  svg.text_upwards(panel.x - 48, panel.y + kPlotHeight / 2, 12, "accesses");

  const double legend = panel.y - 12;
  svg.line(panel.x, legend - 4, panel.x + 24, legend - 4, kInk, "7 4");
  svg.text(panel.x + 30, legend, 11, fmt::format("mean {:.4g}", figures.mean));
  svg.line(panel.x + 120, legend - 4, panel.x + 144, legend - 4, kHot, "2 3");
  svg.text(panel.x + 150, legend, 11, fmt::format("mean + 3 sigma {:.4g}", threshold));
  svg.rect(panel.x + 298, legend - 9, 10, 10, kHot);
  svg.text(panel.x + 313, legend, 11, fmt::format("{:g} entries above it", figures.hot_entries));
}

// Fig. 9. A cell is coloured by accesses over the part's accesses an entry.
void draw_parts(Svg& svg, const Panel& panel, const Shown& shown) {
  const HotnessParts& parts = shown.profile.parts;
  const auto number = static_cast<std::size_t>(parts.number);
  const auto hot = static_cast<std::size_t>(parts.hot);
  std::vector<double> cells;
  for (std::size_t part = 0; part < number; ++part) {
    const std::size_t row = shown.codebook * number + part;
    const double mean =
        static_cast<double>(parts.accesses[row]) / static_cast<double>(shown.profile.entries);
    for (std::size_t rank = 0; rank < hot; ++rank) {
      const auto count = static_cast<double>(parts.counts[row * hot + rank]);
      cells.push_back(mean > 0 ? count / mean : 0.0);
    }
  }
  const double most = std::max(1.0, *std::max_element(cells.begin(), cells.end()));
  const double width = kPlotWidth / static_cast<double>(hot);
  const double height = kPlotHeight / static_cast<double>(number);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    svg.rect(panel.x + width * static_cast<double>(i % hot),
             panel.y + height * static_cast<double>(i / hot), width, height, heat(cells[i] / most));
  }
  for (std::size_t part = 0; part < number; part += (number + 15) / 16) {
    svg.text(panel.x - 6, panel.y + height * (static_cast<double>(part) + 0.5) + 4, 11,
             fmt::format("{}", part), Anchor::end);
  }
  for (std::size_t rank = 0; rank < hot; rank += (hot + 7) / 8) {
    svg.text(panel.x + width * (static_cast<double>(rank) + 0.5), panel.bottom() + 15, 11,
             fmt::format("{}", rank), Anchor::middle);
  }
  svg.text(panel.x + kPlotWidth / 2, panel.bottom() + 32, 12,
           fmt::format("the {} hottest entries of the whole, by rank", hot), Anchor::middle);
  svg.text_upwards(panel.x - 30, panel.y + kPlotHeight / 2, 12,
                   shown.profile.operand == Operand::weights ? "part of the output features"
                                                             : "part of the tokens");

  constexpr double kBar = 120;
  const double legend = panel.y - 12;
  svg.text(panel.x, legend, 11, "accesses, in means of the part:");
  svg.text(panel.right() - kBar - 40, legend, 11, "0", Anchor::end);
  for (int step = 0; step < 40; ++step) {
    svg.rect(panel.right() - kBar - 36 + kBar / 40 * step, legend - 9, kBar / 40, 10,
             heat((step + 0.5) / 40));
  }
  svg.text(panel.right() - 32, legend, 11, fmt::format("{:.3g}", most));
}

Shown most_read(const HotnessProfile& profile) {
  HotnessSummary summary = summarise(profile);
  const auto& all = summary.codebooks;
  const auto found = std::max_element(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.accesses < b.accesses; });
  const auto codebook = static_cast<std::size_t>(found - all.begin());
  return {profile, codebook, *found, std::move(summary.hot_first[codebook])};
}

// A row of two panels a tensor, of its most read codebook: the accesses of all entries hot-first,
// and the hottest entries part by part. `source` stands in the title.
std::string hotness_svg(const std::vector<HotnessProfile>& profiles, const std::string& source) {
  Svg svg(kWidth, kTitleHeight + kRowHeight * static_cast<double>(profiles.size()));
  svg.text(24, 30, 17, "Accesses of codebook entries: " + source, Anchor::start, true);
  double top = kTitleHeight;
  for (const HotnessProfile& profile : profiles) {
    const Shown shown = most_read(profile);
    svg.text(24, top + 20, 14,
             fmt::format("{}, {}, codebook {} of {}: {} accesses", profile.name(),
                         short_name(profile.format), shown.codebook, profile.codebooks(),
                         shown.figures.accesses),
             Anchor::start, true);
    svg.text(kLeft, top + 44, 13, "How uneven: accesses of all entries");
    draw_accesses(svg, {kLeft, top + 78}, shown);
    svg.text(kRight, top + 44, 13, "How steady: the hottest entries, part by part");
    draw_parts(svg, {kRight, top + 78}, shown);
    top += kRowHeight;
  }
  return svg.document();
}

struct ProfileArguments {
  std::string data, out, svg;
  int parts = kHotnessParts;
};

// "44.1", or "-" where the codebook has no more entries than that.
std::string top_percent(const HotnessFigures& figures, std::size_t k) {
  if (k + 1 >= figures.top_share.size()) return "-";
  return fmt::format("{:.1f}", 100 * figures.top_share[k]);
}

std::string steady_text(const HotnessSteadiness& steady) {
  const std::vector<double>& share = steady.share.back();
  const auto [least, most] = std::minmax_element(share.begin(), share.end());
  return fmt::format("top {} take {:.1f}-{:.1f} %, overlap {:.2f}", 1 << (steady.share.size() - 1),
                     100 * *least, 100 * *most, steady.overlap.back());
}

constexpr const char* kRow =
    "{:<{}} {:>7} {:>9} {:>10} {:>8} {:>8} {:>6} {:>6} | {:>5} {:>5} "
    "{:>5} {:>5} {:>5} | {}";

void print_table(const Output& output, const std::vector<HotnessProfile>& profiles) {
  std::size_t width = 6;
  for (const HotnessProfile& each : profiles) width = std::max(width, each.name().size());
  output.line(kRow, "tensor", width, "format", "codebooks", "accesses", "mean", "sigma", "hot",
              "below", "8", "16", "32", "64", "half", "from part to part");
  for (const HotnessProfile& each : profiles) {
    const HotnessFigures total = summarise(each).total;
    output.line(kRow, one_line(each.name()), width, short_name(each.format), each.codebooks(),
                total.accesses, fmt::format("{:.1f}", total.mean),
                fmt::format("{:.1f}", total.sigma), fmt::format("{:.1f}", total.hot_entries),
                fmt::format("{:.1f}", 100 * total.below_mean), top_percent(total, 3),
                top_percent(total, 4), top_percent(total, 5), top_percent(total, 6),
                top_percent(total, total.top_share.size() - 2), steady_text(steadiness(each)));
  }
  output.line(
      "mean: accesses an entry; hot: entries above mean + 3 sigma; below: % of entries below "
      "the mean;");
  output.line(
      "8 to half: % of accesses that so many hottest entries take; overlap: of each part's "
      "hottest with the whole's");
}

Json tensor_json(const HotnessProfile& profile) {
  const HotnessFigures total = summarise(profile).total;
  const HotnessSteadiness steady = steadiness(profile);
  return {{"item", profile.item},
          {"operand", enum_name(profile.operand)},
          {"format", short_name(profile.format)},
          {"codebooks", profile.codebooks()},
          {"accesses", total.accesses},
          {"mean", total.mean},
          {"sigma", total.sigma},
          {"hot_entries", total.hot_entries},
          {"below_mean", total.below_mean},
          {"top_share", total.top_share},
          {"parts", {{"share", steady.share}, {"overlap", steady.overlap}}}};
}

// The bundle is read and the others are written: none may be another of them.
void require_places(const ProfileArguments& options) {
  require_place("profile", "--out", options.out);
  if (!options.svg.empty()) require_place("profile", "--svg", options.svg);
  std::error_code ignored;
  if (options.svg == options.out ||
      std::filesystem::equivalent(options.data, options.out, ignored) ||
      std::filesystem::equivalent(options.data, options.svg, ignored)) {
    throw Error(ErrorKind::bad_input,
                "profile: two of --data, --out and --svg name one file; name another");
  }
}

void profile(const ProfileArguments& options, Output& output) {
  require_places(options);
  output.step("counting {}", options.data);
  const Bundle bundle = read_bundle(std::filesystem::path(options.data));
  const std::vector<HotnessProfile> profiles = profile_bundle(bundle, options.parts);
  if (profiles.empty()) {
    throw Error(ErrorKind::bad_input, options.data + ": holds no items; quantize again");
  }
  output.document = {{"data", options.data}, {"out", options.out}, {"tensors", Json::array()}};
  const std::string text = hotness_text(profiles);
  std::vector<FileContent> files{{options.out, std::as_bytes(std::span(text))}};
  std::string svg;
  if (!options.svg.empty()) {
    svg = hotness_svg(profiles, std::filesystem::path(options.data).filename().string());
    files.push_back({options.svg, std::as_bytes(std::span(svg))});
    output.document["svg"] = options.svg;
  }
  publish_files(files);
  if (output.json) {
    for (const HotnessProfile& each : profiles) {
      output.document["tensors"].push_back(tensor_json(each));
    }
  } else {
    print_table(output, profiles);
  }
  for (const FileContent& file : files) output.line("wrote {}", file.path.string());
}

}  // namespace

void add_profile(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<ProfileArguments>(
      app, output, "profile",
      "Count how often each codebook entry of a bundle is read, and how steadily", profile);
  command->add_option("--data", options->data, "A bundle of vqgen quantize")->required();
  command->add_option("--out", options->out, "The profile to write, JSON")->required();
  command->add_option("--svg", options->svg, "A picture of it to write");
  command->add_option("--parts", options->parts, "Parts of the rows that are compared")
      ->capture_default_str()
      ->check(whole_number(1, 1024));
}

}  // namespace vqgen::cli
